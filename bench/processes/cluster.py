"""The nodes of a Slurm job that this process is part of, from the environment that Slurm gives it."""

import os


def nodes() -> int:
    """Return the nodes of this job; 1 outside of Slurm, and where a job is started by hand on one of its nodes.

    >>> nodes()
    1
    """
    return int(os.environ.get("SLURM_JOB_NUM_NODES") or os.environ.get("SLURM_NNODES") or 1)


def is_follower() -> bool:
    """Return whether another process of this job, on its first node, runs the job and starts ranks on all nodes."""
    return nodes() > 1 and int(os.environ.get("SLURM_PROCID") or 0) > 0
