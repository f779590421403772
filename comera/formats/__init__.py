"""Formats of a weight beside the tensor trains."""
