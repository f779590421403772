"""Resources of a kernel on a multiprocessor, found by compiling for an architecture that may be absent."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from comera.kernels import epilogue, feed_forward
from comera.kernels.configurations import ARCHITECTURES, Configuration

KERNELS: dict[str, Any] = {
    kernel.fn.__name__: kernel
    for kernel in (
        feed_forward.hidden_forward,
        feed_forward.hidden_backward_rows,
        feed_forward.hidden_backward_columns,
        epilogue.add_norm_forward,
        epilogue.add_norm_backward_rows,
        epilogue.add_norm_backward_columns,
    )
}

#: Types of arguments that are not the products' own. Residuals and what LayerNorm puts out are FP32 under autocast.
_TYPES = {
    **dict.fromkeys(("T", "H", "M", "P", "Q", "part"), "i32"),
    **dict.fromkeys(("p", "scale", "eps"), "fp32"),
    **dict.fromkeys(("sums", "statistics", "residual", "dresidual", "out", "dout", "weight", "shift"), "*fp32"),
    "seed": "*i64",
}

#: Sizes that are a multiple of 16 as a rule, which makes wide loads of their rows.
_MULTIPLES = ("T", "H", "M", "part")


@dataclass(frozen=True)
class Resources:
    """Resources of one compiled kernel: registers per thread, shared memory per program, spilled bytes, stack.

    Shared memory is in bytes; spilled bytes are those that a thread stores to and loads from memory for lack of
    registers.
    """

    registers: int
    shared: int
    spill_stores: int
    spill_loads: int
    stack: int

    def fits(self, arch: int) -> bool:
        """Return whether it neither spills nor takes more shared memory than an architecture has.

        >>> Resources(255, 49152, 4, 4, 8).fits(90), Resources(255, 49152, 0, 0, 0).fits(90)
        (False, True)
        """
        return not (self.spill_stores or self.spill_loads or self.stack) and self.shared <= ARCHITECTURES[arch]


def resources(
    name: str, kind: str, padded: int, configuration: Configuration, arch: int, activation: str = "gelu"
) -> Resources:
    """Compile a kernel with bias and dropout.

    Args:
        name: of :data:`KERNELS`.
        kind: as :func:`comera.kernels.configurations.arithmetic` has it.
        padded: rank of a tile.
        arch: one of :data:`comera.kernels.configurations.ARCHITECTURES`.
        activation: one of :data:`comera.functional.ACTIVATIONS`.
    """
    kernel = KERNELS[name]
    own = "*fp32" if kind == "tf32" else f"*{kind}"
    constants = {
        "HAS_BIAS": True,
        "HAS_DROPOUT": True,
        "ACTIVATION": activation,
        "PADDED_P": padded,
        "PADDED_Q": padded,
        "PRECISION": "tf32" if kind == "tf32" else "ieee",
        "BLOCK_M": configuration.block_m,
        "BLOCK_N": configuration.block_n,
    }
    constants = {argument: value for argument, value in constants.items() if argument in kernel.arg_names}
    signature = {
        argument: "constexpr" if argument in constants else _TYPES.get(argument, own) for argument in kernel.arg_names
    }
    divisible = {
        (place,): [["tt.divisibility", 16]]
        for place, argument in enumerate(kernel.arg_names)
        if signature[argument][0] == "*" or argument in _MULTIPLES
    }
    compiled = triton.compile(
        ASTSource(kernel, signature, constants, divisible),
        target=GPUTarget("cuda", arch, 32),
        options={"num_warps": configuration.warps, "num_stages": configuration.stages},
    )
    return Resources(shared=compiled.metadata.shared, **_assembled(compiled.asm["ptx"]))


def _assembled(ptx: str) -> dict[str, int]:
    """Return the resources that NVIDIA's assembler reports for a kernel, called as Triton calls it."""
    target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    assert target is not None
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as source:
        source.write(ptx)
        source.flush()
        command = [triton.knobs.nvidia.ptxas.path, "-v", "--regAllocOptLevel=2", f"--gpu-name={target[1]}"]
        said = subprocess.run(
            [*command, source.name, "-o", "/dev/null"], capture_output=True, text=True, check=True
        ).stderr
    patterns = {
        "registers": r"Used (\d+) registers",
        "spill_stores": r"(\d+) bytes spill stores",
        "spill_loads": r"(\d+) bytes spill loads",
        "stack": r"(\d+) bytes stack frame",
    }
    return {name: int(re.findall(pattern, said)[-1]) for name, pattern in patterns.items()}
