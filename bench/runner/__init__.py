"""From a configuration to records: sweeps, processes, checkpoints, progress."""

#: In the environment: the arms of a sweep, separated by commas, for which processes are to be made ready.
ARMS = "BENCH_ARMS"
