"""Inspection of a model: its layers, and the memory and work of a step."""
