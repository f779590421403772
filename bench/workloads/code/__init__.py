"""The workload ``code``: masked language modelling on Python source, with a model of the shape called CodeBERT-like."""

from bench.workloads.code.workload import CodeWorkload

WORKLOAD = CodeWorkload
