"""From a wanted compression ratio to modes and ranks: of one layer, and of all layers of a model."""
