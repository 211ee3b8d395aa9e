"""The demonstration: the same traffic under several path policies."""
