"""Text corpora and tokenisation for the workloads."""
