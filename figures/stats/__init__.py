"""Times, scores, sizes, searches and plans, taken from records."""
