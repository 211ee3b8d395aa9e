"""What each command of `tidegate` does, one module a command."""
