"""A whole emulated fleet: workers and the gateway in front of them, as child processes."""
