"""Rank control in training loops that others have written."""
