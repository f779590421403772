"""Tensorized models on disk, and as dense models for programs without tensor trains."""
