"""Local or remote prefill: one Protocol, several policies."""
