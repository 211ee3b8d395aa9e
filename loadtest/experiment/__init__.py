"""Experiments: a file that says what is varied, the runs that follow from it, and one table of what came of them."""
