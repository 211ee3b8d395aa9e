"""HTTP out: the connection pool, and a request's journey through its legs."""
