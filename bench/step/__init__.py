"""One train step, its clock and its allocator."""
