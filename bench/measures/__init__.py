"""What can be measured of a cell, one module each."""
