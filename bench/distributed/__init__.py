"""Cells of several ranks: how they are started, how gradients travel between them, and what that costs."""
