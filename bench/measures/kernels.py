"""Measure ``kernels``: what the kernels of a feed-forward take of GPUs that need not be there, and what they save.

The layer of the cell is the first of the two, N to H, the second leads back. Every configuration is compiled for every
architecture, for the products of the cell's precision, its rank padded. The samples of a record (measure ``kernels``):

* ``shape``: ``N``, ``H``, ``rank``, ``padded``;
* ``kernels``, a row per kernel, configuration and architecture: ``kernel``, ``arch``, ``block_m``, ``block_n``,
  ``warps``, ``stages``, and the most of all activations: ``registers`` per thread, ``shared`` memory of a program,
  ``spill_stores``, ``spill_loads``, ``stack`` in bytes; ``fits``, whether the kernel may be tuned over it;
* ``traffic``, a row per pass and form: ``pass``, ``form``, ``elements`` per token that are read and written, and
  ``least_ms`` by device: the larger of operations / peak and traffic / bandwidth, for the tokens of the batch.

Form ``layers``: each operation reads and writes its wide activations, as autograd runs the layers. Form ``kernels``: x,
y, their gradients and rank-wide activations; the columns kernel reads the latter once per tile, which L2 has to serve.
"""

from dataclasses import asdict
from typing import Any

from bench.core.cell import Cell
from bench.estimate.devices import GPUS
from bench.estimate.work import Bound
from bench.measures import Measure
from bench.measures.micro import is_linear_layer
from bench.processes.process import answers
from bench.protocol import Workload
from bench.protocol.methods import build_for
from bench.step.low_precision import PLAIN
from comera import TTLinear
from comera.functional import ACTIVATIONS
from comera.kernels.configurations import ARCHITECTURES, candidates, padded_rank

_LIMIT_S = 3600.0


def kernels_unsupported(cell: Cell) -> str | None:
    """Explain why the kernels of a cell cannot be compiled; None if they can."""
    ranks = cell.method_settings["ranks"]
    padded = padded_rank(ranks)
    if padded is None or not candidates(cell.precision, padded):
        return f"ranks is {ranks}; the kernels take up to 128, in FP32 and TF32 up to 64."
    return None


def kernels_columns(cell: Cell, workload: Workload) -> dict[str, Any]:
    """Compile every kernel in every configuration and return the record's columns."""
    model = build_for(cell).adapt(workload.build(), workload.targets())
    layer = next(module for module in model.modules() if isinstance(module, TTLinear))
    N, H, rank = layer.in_features, layer.out_features, layer.shape.ranks[layer.shape.half - 1]
    padded = padded_rank(rank)
    assert padded is not None
    rows = traffic_rows(N, H, rank, cell.batch_size, cell.precision)
    return {
        "flops_per_step": sum(row["flops"] for row in rows if row["form"] == "kernels"),
        "samples": {
            "shape": {"N": N, "H": H, "rank": rank, "padded": padded},
            "kernels": resource_rows(cell.precision, padded),
            "traffic": rows,
        },
    }


def resource_rows(kind: str, padded: int) -> list[dict[str, Any]]:
    """Return the resources of every kernel, configuration and architecture: the most of all activations."""
    from comera.kernels.ahead_of_time import KERNELS, Resources, resources

    rows = []
    for name, kernel in KERNELS.items():
        activations = ACTIVATIONS if "ACTIVATION" in kernel.arg_names else ACTIVATIONS[:1]
        for arch in ARCHITECTURES:
            for tile in candidates(kind, padded):
                found = [asdict(resources(name, kind, padded, tile, arch, activation)) for activation in activations]
                most = {field: max(one[field] for one in found) for field in found[0]}
                fits = Resources(**most).fits(arch)
                rows.append({"kernel": name, "arch": arch, **tile._asdict(), **most, "fits": fits})
    return rows


def traffic_rows(N: int, H: int, rank: int, tokens: int, precision: str) -> list[dict[str, Any]]:
    """Return elements per token, operations of all tokens and the least time, of each pass in each form.

    >>> [(row["form"], row["elements"]) for row in traffic_rows(768, 3072, 30, 4096, "bf16")]
    [('layers', 13824), ('kernels', 1656), ('layers', 28416), ('kernels', 4110)]
    """
    products = 2 * rank * tokens * 2 * (N + H)  # of the layers, forward
    again = 2 * rank * tokens * 3 * H  # backward of the kernels: z1 by right1 twice, dz2 by left2 once more
    width = 2 if precision == "bf16" else 4
    rows: list[dict[str, Any]] = []
    for name, form, elements, flops in (
        ("forward", "layers", 2 * N + 4 * H, products),  # x, h and its activation out and in, y
        ("forward", "kernels", 2 * N + 4 * rank, products),  # z1 and z2 out and in
        # dy for z2, right2 and bias2, x, dx; of h: its gradients out and in, itself twice, what three sums read
        ("backward", "layers", 5 * N + 8 * H, 2 * products),
        ("backward", "kernels", 5 * N + 9 * rank, 2 * products + again),
    ):
        least = {
            gpu: Bound(1e3 * flops / device.peak_flops[precision], 1e3 * elements * tokens * width / device.bandwidth)
            for gpu, device in GPUS.items()
        }
        ms = {gpu: bound.step_ms for gpu, bound in least.items()}
        rows.append({"pass": name, "form": form, "elements": elements, "flops": flops, "least_ms": ms})
    return rows


MEASURE = Measure(
    name="kernels",
    precisions=PLAIN,
    words="registers, shared memory and spills of the fused feed-forward's kernels, compiled ahead of time",
    outcomes=lambda cells, session: (
        [outcome] for outcome in answers(kernels_columns, cells, session.data, session.parallel, _LIMIT_S)
    ),
    unsupported=kernels_unsupported,
    about="the tensor train of one linear layer",
    workloads=is_linear_layer,
    methods=("comera",),
    parallel=True,
    on_device=False,
    timed=False,
    cost=lambda _: 100.0,
)
