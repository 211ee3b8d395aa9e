"""The decision core: pure, deterministic, told everything and asking for nothing."""
