"""The open-loop HTTP load generator and its records."""
