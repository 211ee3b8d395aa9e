"""Which workers there are and how they are."""
