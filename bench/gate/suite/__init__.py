"""The gate's benchmarks as pytest runs them, in a run of their own (``make gate``)."""
