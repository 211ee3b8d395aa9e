"""A crowd of concurrent streams, some of whose clients leave: nothing may be lost, and memory must come back."""
