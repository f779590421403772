"""Kernels without a GPU: results in Triton's interpreter, what is served, the choice of a way, ahead-of-time builds."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from comera import TT, kernels, tensorize
from comera.dropout import as_on_cuda
from comera.kernels import choice, norms
from comera.kernels.configurations import Configuration, candidates
from comera.kernels.norms import fuse_norms

ROOT = Path(__file__).parents[2]

pytest.importorskip("triton")


@pytest.mark.slow
def test_the_interpreter_gives_the_right_results():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/comera/test_comera_kernels.py"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("capability", "cuda", "triton_there", "served"),
    [
        ((8, 0), "13.0", True, True),
        ((9, 0), "13.0", True, True),
        ((7, 5), "13.0", True, False),
        ((9, 0), None, True, False),  # a build for AMD's devices, or for none
        ((9, 0), "13.0", False, False),
    ],
)
def test_which_devices_are_served(monkeypatch, capability, cuda, triton_there, served):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: sys if triton_there and name == "triton" else None)
    kernels._offered.cache_clear()
    device = torch.device("cuda", 0)
    assert kernels._offered(device) is served
    kernels._offered.cache_clear()


@pytest.mark.parametrize(
    ("dtype", "rank", "served"), [(torch.bfloat16, 30, True), (torch.float64, 30, False), (torch.bfloat16, 129, False)]
)
def test_which_products_are_served(dtype, rank, served):
    x = torch.ones(2)
    assert not kernels.hidden_served(x, dtype, 30, rank)  # real numbers on a CPU
    with as_on_cuda(), FakeTensorMode() as fake:
        assert kernels.hidden_served(fake.from_tensor(x), dtype, 30, rank) is served


@pytest.fixture
def timed(monkeypatch):
    """The names of the ways that are timed, with the times of this table."""
    names, times = [], {"kernels": 2.0, "torch": 1.0}
    monkeypatch.setattr(choice, "_FASTEST", {})
    monkeypatch.setattr(choice, "_time_ms", lambda name, *_: names.append(name) or times[name])
    monkeypatch.setattr(torch.random, "fork_rng", lambda _: contextlib.nullcontext())
    return names


def test_ways_are_timed_once_for_a_shape_and_never_within_a_capture(timed, monkeypatch):
    def way(key, capturing, device="cuda"):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
        return choice.fastest(key, torch.device(device), {"kernels": None, "torch": None}, list, "kernels")

    assert way("one", capturing=True) == "kernels"
    assert way("one", capturing=False, device="cpu") == "kernels"
    assert timed == []
    assert way("one", capturing=False) == "torch"
    assert way("one", capturing=True) == "torch"
    assert timed == ["kernels", "torch"]
    assert way("other", capturing=False) == "torch"
    assert len(timed) == 4


def test_a_way_that_fails_is_left_out(monkeypatch):
    def fails(_):
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(torch.cuda, "Event", mock.MagicMock())
    with pytest.warns(UserWarning, match="kernels is not used"):
        assert choice._time_ms("kernels", fails, [torch.ones(2)]) == float("inf")


def model(dtype=torch.float32):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.dropout = nn.Linear(8, 8, dtype=dtype), nn.Dropout(0.1)
            self.norm = nn.LayerNorm(8, dtype=dtype)

        def forward(self, x, given=None):
            return self.norm(x + self.dropout(self.layer(x if given is None else given)))

    return nn.Sequential(
        Block(), nn.Sequential(nn.Linear(8, 16, dtype=dtype), nn.GELU(), nn.Linear(16, 8, dtype=dtype))
    )


@pytest.mark.parametrize(("fused", "taken"), [("auto", True), ("kernels", True), ("torch", False)])
def test_a_prediction_for_cuda_takes_the_kernels_and_a_cpu_nothing(fused, taken):
    assert not any("forward" in one.__dict__ for one in tensorize(model(), {"*": TT(2)}, merge_jointly=False).modules())
    with FakeTensorMode(), as_on_cuda(), OperatorNames() as names:
        there = tensorize(model(torch.bfloat16), {"*": TT(2)}, fused=fused)
        x = torch.ones(4, 8, dtype=torch.bfloat16)
        there[1](there[0](x, x)).sum().backward()
    wanted = {"hidden", "hidden_rows", "hidden_columns", "add_norm", "add_norm_backward"}
    assert {name for name in names.seen if name in wanted} == (wanted if taken else set())


class OperatorNames(TorchDispatchMode):
    """The names of the operators of a block."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_an_argument_whose_none_changes_the_calls_is_noted():
    block = model()[0].eval()
    x, given = torch.randn(2, 3, 8)
    wanted = block(x), block(x, given)
    assert fuse_norms(block, "kernels") == [""]
    assert block.forward._not_none == frozenset({"x", "given"})
    with (
        mock.patch.object(kernels, "serve", return_value=True),
        mock.patch.object(kernels, "add_norm_served", return_value=False),
    ):
        assert torch.equal(block(x), wanted[0])
        assert torch.equal(block(x, given), wanted[1])


class TwoEnds(nn.Module):
    """Two sub-layers, each with its norm behind the sum; only linear layers read their inputs."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.wide, self.last = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)), nn.LayerNorm(8)

    def forward(self, x):
        x = self.norm(x + self.layer(x))
        return self.last(x + self.wide(x))


def gradients_of(block, x):
    """The output under autocast, all gradients, and the names of the operators of backward."""
    with torch.autocast("cpu", torch.bfloat16):
        y = block(x)
    wanted = [one for one in (x, *block.parameters()) if one.requires_grad]
    with OperatorNames() as names:
        found = torch.autograd.grad(y, wanted, torch.linspace(-1, 1, y.numel()).view(y.shape))
    return [y, *found], names.seen


@pytest.fixture
def by_torch():
    """Has the ends of sub-layers run as on a GPU, but by torch's operations."""
    served = {"serve": True, "add_norm_served": False}
    with contextlib.ExitStack() as stack:
        for name, value in served.items():
            stack.enter_context(mock.patch.object(kernels, name, return_value=value))
        yield


@pytest.mark.parametrize(
    ("way", "casts"), [("plain", 2), ("no gradient of x", 1), ("hooked", 1), ("hooked inside", 1), ("FP64", 0)]
)
@pytest.mark.usefixtures("by_torch")
def test_the_gradient_of_products_is_added_to_that_of_the_residual_without_a_cast(way, casts):
    block, x = TwoEnds(), torch.randn(5, 8, requires_grad=way != "no gradient of x")
    if way == "hooked":
        block.layer.register_forward_hook(lambda *_: None)
    if way == "hooked inside":
        block.wide[0].register_forward_pre_hook(lambda *_: None)
    if way == "FP64":
        block, x = block.double(), x.detach().double().requires_grad_()
    wanted, before = gradients_of(block, x)
    assert fuse_norms(block, "kernels") == [""]
    found, after = gradients_of(block, x)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert before.count("_to_copy") - after.count("_to_copy") == casts


@pytest.mark.parametrize("used", [0, 1])
def test_one_gradient_of_two_passes_as_it_is(used):
    x = torch.ones(3, requires_grad=True)
    results = norms._CastApart.apply(x, torch.bfloat16)
    assert [one.dtype for one in results] == [torch.bfloat16, torch.float32]
    results[used].float().sum().backward()
    assert torch.equal(x.grad, torch.ones(3))


def test_wrong_values_are_named():
    with pytest.raises(ValueError, match="fused is 'cuda'; allowed: auto, kernels, torch"):
        tensorize(model(), {"*": TT(2)}, fused="cuda")


#: Kernels that spill registers in a tile, by the tile's rows and the GPU: there the tuner has smaller tiles.
SPILLS = {
    ("hidden_backward_columns", 64, 80),
    ("hidden_backward_columns", 128, 80),
    ("hidden_backward_columns", 128, 90),
}


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("tile", [(32, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 2)])
@pytest.mark.parametrize("name", ["hidden_forward", "hidden_backward_rows", "hidden_backward_columns"])
def test_a_kernel_of_the_feed_forward_compiles_for_a_gpu_that_is_not_there(name, tile, arch):
    from comera.kernels import feed_forward

    tile = Configuration(*tile)
    assert tile in candidates("bf16", 32)
    shared = {"T": "i32", "H": "i32", "P": "i32", "Q": "i32", "part": "i32", "sums": "*fp32"}
    constants = {"HAS_BIAS": True, "ACTIVATION": "gelu", "PRECISION": "ieee", "PADDED_P": 32, "PADDED_Q": 32}
    constants |= {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n}
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    spilled = spilled_bytes(getattr(feed_forward, name), constants, shared, "*bf16", arch, options)
    assert any(spilled) is ((name, tile.block_m, arch) in SPILLS), spilled


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("name", ["add_norm_forward", "add_norm_backward"])
def test_a_kernel_of_an_end_compiles_for_a_gpu_that_is_not_there(name, arch):
    from comera.kernels import epilogue

    types = dict.fromkeys(("M", "T", "part"), "i32") | dict.fromkeys(("p", "scale", "eps"), "fp32")
    types |= {"y": "*bf16", "dy": "*bf16", "bits": "*u8", "seed": "*i64"}
    constants = {"HAS_DROPOUT": True, "BLOCK": 1024}
    assert spilled_bytes(getattr(epilogue, name), constants, types, "*fp32", arch, {"num_warps": 4}) == [0, 0]


def spilled_bytes(kernel, constants, types, otherwise, arch, options):
    """Bytes of registers that a kernel stores and loads, as counted by the assembler that comes with Triton."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    signature = {name: "constexpr" if name in constants else types.get(name, otherwise) for name in kernel.arg_names}
    compiled = triton.compile(
        ASTSource(kernel, signature, constants), target=GPUTarget("cuda", arch, 32), options=options
    )
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as source:
        source.write(compiled.asm["ptx"])
        source.flush()
        name = re.search(r"^\.target (\w+)", compiled.asm["ptx"], re.MULTILINE)[1]
        command = [triton.knobs.nvidia.ptxas.path, "-v", f"--gpu-name={name}", source.name, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return [int(count) for count in re.findall(r"(\d+) bytes spill", said)]
