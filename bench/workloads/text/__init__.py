"""The workload ``text``: a causal language model over any text, small enough to decide in minutes."""

from bench.workloads.text.workload import TextWorkload

WORKLOAD = TextWorkload
