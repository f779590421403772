"""The process of a cell, what runs in it, and how several take turns."""
