"""The ways of asking for text and of being answered: one module per API, all over the same engine work."""
