"""Figures that the paper lacks: one module each, found as all artifacts are."""
