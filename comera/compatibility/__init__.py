"""What other libraries expect of a layer: a weight that can be read, parameters that a distributed wrapper holds."""
