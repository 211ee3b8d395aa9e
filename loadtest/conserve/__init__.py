"""Conversations under comparison: ConServe and what it is held against, with time to effective token and energy."""
