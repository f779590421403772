"""Figures on training over several ranks."""
