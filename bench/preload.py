"""Heavy imports of a cell's process, paid once by the server that the processes are forked from."""

import baselines.galore
import baselines.lora
import bench.worker  # noqa: F401

with baselines.galore.quiet_import():
    import galore_torch  # noqa: F401
    import peft  # noqa: F401
