"""Tidegate: an SLO-aware routing gateway for LLM inference."""

__version__ = "0.1.0"
