"""The compiled train step: the same training as without, also when ranks are cut, and what it needs."""

import functools
import sys
from unittest import mock

import pytest
import torch
from tiny_steps import ARMS, a_step, batches

from bench.step.unsupported import compile_unsupported


@pytest.fixture(autouse=True)
def front_end_alone(monkeypatch):
    """The compiler's front end and its autograd, without the minute that generating code takes."""
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    yield
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense", "comera", "galore"])
def test_a_compiled_step_trains_as_an_eager_one(name):
    if reason := compile_unsupported("cpu"):
        pytest.skip(reason)
    # Losses tell of the parameters, but for those without influence, whose gradients are rounding errors.
    eager, compiled = a_step(ARMS[name]), a_step(ARMS[name], compile=True)
    for batch in batches(6):
        torch.testing.assert_close(compiled(batch), eager(batch), rtol=1e-5, atol=0)


def test_without_a_compiler_there_is_a_reason():
    from torch._inductor import cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    with mock.patch.object(cpp_builder, "get_cpp_compiler", side_effect=InvalidCxxCompiler()):
        reason = compile_unsupported("cpu")
        with pytest.raises(ValueError, match=r"^compile=true needs a C\+\+ compiler"):
            a_step(ARMS["dense"], compile=True)
    assert reason == "compile=true needs a C++ compiler on a CPU and finds none; install g++ or use compile=false."


@pytest.mark.parametrize("there", [True, False])
def test_on_a_device_it_is_triton_that_is_needed(there, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: sys if there and name == "triton" else None)
    reason = compile_unsupported("cuda")
    assert (reason is None) if there else ("needs the package triton" in reason)
