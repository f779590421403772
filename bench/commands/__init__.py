"""The commands of ``python -m bench`` that run no sweep."""
