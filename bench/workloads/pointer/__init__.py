"""The workload ``pointer``: a look-up in real text, which attention learns in a minute and a linear model cannot."""

from bench.workloads.pointer.workload import PointerWorkload

WORKLOAD = PointerWorkload
