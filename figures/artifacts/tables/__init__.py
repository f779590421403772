"""Artifacts that are tables alone."""
