"""Hypothesis on a shared machine: an example may take as long as it takes."""

from hypothesis import settings

settings.register_profile("tidegate", settings(), deadline=None)
settings.load_profile("tidegate")
