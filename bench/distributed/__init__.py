"""Training on more than one device, and the links between them."""
