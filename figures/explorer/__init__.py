"""One page in which every record is a point."""
