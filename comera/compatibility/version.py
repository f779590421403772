"""The version of the package, which saved models name."""

__version__ = "0.3.0"
