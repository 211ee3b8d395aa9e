"""HTTP in: the routes that clients and operators call."""
