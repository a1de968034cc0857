"""What a report of runs shows: which plots, which tables."""
