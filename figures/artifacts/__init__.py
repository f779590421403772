"""One module per figure or table; each names it in ``ARTIFACT``."""
