"""Compares the engine model with what was measured elsewhere."""
