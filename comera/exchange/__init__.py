"""Tensorized models on disk, and as dense models for what knows no tensor trains."""
