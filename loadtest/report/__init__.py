"""What runs come to: summaries, tables and plots."""
