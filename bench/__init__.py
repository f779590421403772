"""The bench: workloads, measurement, records and sweeps under one protocol for every training method."""
