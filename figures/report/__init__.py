"""One page with all verdicts, figures and tables."""
