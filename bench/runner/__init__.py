"""From a configuration to records: sweeps, processes, checkpoints, progress."""
