"""Models and data on which methods are compared."""
