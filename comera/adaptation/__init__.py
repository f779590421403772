"""Smaller ranks of trained layers: closed during training along a planned curve, or rounded at once."""
