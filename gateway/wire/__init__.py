"""Wire formats, sans I/O: bytes in, values out. Nothing here waits, opens a socket or reads a clock."""
