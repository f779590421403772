"""Predicted memory: against hand counts, against real runs, against two other witnesses within PyTorch."""

import contextlib
import gc
from types import SimpleNamespace

import pytest
import torch
from tiny import ModelWorkload, TinyMethod, TinyWorkload, rare_event
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from bench.estimate.cuda_operations import cuda_operations
from bench.estimate.memory import CATEGORIES, Operations, predict_memory, reachable_tensors, trace_memory
from bench.protocol.methods import build, checked_settings
from bench.step.train_step import TrainStep

B, N, M = 64, 8, 512  # batch, in-features, hidden features: wide enough that the peak lies in backward
FLOAT = 4


def perceptron():
    return nn.Sequential(nn.Linear(N, M), nn.GELU(), nn.Linear(M, 1))


def predict_tiny(workload=None, method=None, batch_size=8, precision="fp32", device="cpu"):
    workload, method = workload or TinyWorkload(blocks=1), method or TinyMethod()
    return predict_memory(workload, method, batch_size, precision, device, seed=0)


def categories(memory):
    return {name: getattr(memory, name) for name in CATEGORIES}


def trace(workload, method, batch_size=8, precision="fp32", fake=False, operations=contextlib.nullcontext):
    """Trace two steps on real tensors, or on fake ones by the same code."""
    batch = next(workload.batches("train", batch_size, 0, True))
    with FakeTensorMode() if fake else contextlib.nullcontext() as mode, operations():
        model = method.adapt(workload.build(), workload.targets())
        step = TrainStep(model, method, method.optimizer(model), workload.loss, precision, "cpu")
        batch = {name: mode.from_tensor(tensor) if fake else tensor for name, tensor in batch.items()}
        return trace_memory(step, batch)


def test_a_perceptron_against_a_hand_count():
    memory = predict_tiny(ModelWorkload(perceptron, (N,)), batch_size=B)
    # The peak: backward of the last layer has formed all its gradients and not yet let go of its input.
    numbers = N * M + M + M * 1 + 1
    x, before_gelu, after_gelu = B * N, B * M, B * M  # the batch, what gelu keeps, what the last layer keeps
    loss = upstream_of_loss = 1
    counters = 4  # Adam's step, one for each of the four parameters
    assert categories(memory) == {
        "parameters": FLOAT * numbers,
        "gradients": FLOAT * (M * 1 + 1),
        "optimizer": FLOAT * (2 * numbers + counters),
        "activations": FLOAT * (x + before_gelu + after_gelu + loss),
        "temporaries": FLOAT * (B * M + B * 1 + upstream_of_loss),  # upstream of gelu and of the output
    }
    assert (memory.parameter_count, memory.stored) == (numbers, FLOAT * numbers)


def test_with_a_batch_of_one_the_peak_is_in_the_optimizers_reach():
    memory = predict_tiny(ModelWorkload(lambda: nn.Linear(300, 200), (300,)), batch_size=1)
    numbers = 300 * 200 + 200
    assert memory.parameters == memory.gradients == FLOAT * numbers
    assert memory.optimizer == FLOAT * (2 * numbers + 2)
    assert memory.activations + memory.temporaries < FLOAT * 1000


@pytest.mark.parametrize(
    ("device", "precision", "batch_size"),
    [("cpu", "fp32", 1), ("cpu", "bf16", 64), ("cuda", "fp32", 64), ("cuda", "bf16", 1)],
)
def test_the_categories_add_up_to_the_peak(device, precision, batch_size):
    memory = predict_tiny(batch_size=batch_size, precision=precision, device=device)
    assert sum(categories(memory).values()) == memory.peak
    assert min(categories(memory).values()) >= 0
    assert memory.mib()["peak"] * 1024**2 == pytest.approx(memory.peak)
    assert memory.mib()["peak"] == pytest.approx(sum(memory.mib()[name] for name in CATEGORIES))


COMERA = {"ranks": 4, "table_ranks": 4, "order": 2, "table_order": 2}

#: Arms, their settings, and batch, precision and mask.
RUNS = [
    ("dense", "", {}, {}),
    ("dense", "", {}, {"batch_size": 1, "masked": False, "precision": "bf16"}),
    ("dense", "", {}, {"batch_size": 9, "masked": False}),
    ("dense", "", {}, {"batch_size": 9, "precision": "bf16"}),
    ("dense", "sparse", {}, {}),
    ("dense", "row_wise", {}, {}),
    ("galore", "", {"rank": 8}, {}),
    ("lora", "", {"rank": 4}, {}),
    ("low_rank", "", {"rank": 4}, {}),
    ("low_rank", "linear", {"rank": 4}, {}),
    ("lte", "", {"heads": 4, "rank": 4}, {}),
    ("comera", "", COMERA, {}),
]


@pytest.mark.parametrize(("name", "variant", "settings", "how"), RUNS)
def test_fake_and_real_runs_agree_byte_for_byte(name, variant, settings, how):
    """CoMERA's but for its unique rows, whose number is in the data: a fake batch takes all of them to differ."""
    how = {"batch_size": 8, "precision": "fp32", "masked": True} | how
    workload = TinyWorkload(blocks=1, masked=how.pop("masked"))
    predicted = predict_tiny(workload, build(name, variant, checked_settings(name, settings)), **how)
    found = trace(workload, build(name, variant, checked_settings(name, settings)), **how)
    if name == "comera":
        assert found.peak == pytest.approx(predicted.peak, rel=0.01)
    else:
        assert found == predicted


def test_fake_and_real_runs_agree_on_cudas_dropout():
    def model():
        return nn.Sequential(nn.Linear(N, M), nn.Dropout(0.1), nn.LayerNorm(M), nn.Linear(M, 1))

    workload = ModelWorkload(model, (N,))
    real = trace(workload, TinyMethod(), B, operations=cuda_operations)
    assert real == predict_tiny(workload, batch_size=B, device="cuda")
    on_cpu = trace(workload, TinyMethod(), B)
    assert on_cpu.peak - real.peak == (FLOAT - 1) * B * M  # one mask, of one byte instead of four


@pytest.mark.parametrize("batch_size", [1, 48])
def test_the_cpu_allocator_reports_the_predicted_peak(batch_size):
    """The witness is PyTorch's profiler, which sees every allocation, those inside kernels too."""
    workload, method = TinyWorkload(width=64), TinyMethod()
    gc.collect()  # what other tests left would be freed meanwhile, and its size be missing from the sum
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    with profile:
        batch = next(workload.batches("train", batch_size, 0, True))
        model = method.adapt(workload.build(), workload.targets())
        step = TrainStep(model, method, method.optimizer(model), workload.loss, "fp32", "cpu")
        for _ in range(2):
            step(batch)
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    in_use = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        in_use += event.nbytes()
        peak = max(peak, in_use)
    predicted = predict_tiny(workload, batch_size=batch_size).peak
    assert peak == pytest.approx(predicted, rel=0.02)


def test_frozen_weights_and_buffers_count_as_parameters():
    def model():
        net = nn.Sequential(nn.Linear(N, M), nn.BatchNorm1d(M), nn.Linear(M, 1))
        net[0].requires_grad_(False)
        net.table = torch.zeros(1000)  # a plain attribute is as much memory as a buffer
        return net

    memory = predict_tiny(ModelWorkload(model, (N,)), batch_size=B)
    frozen, trained = N * M + M, 2 * M + M * 1 + 1
    running = 2 * M
    assert memory.parameters == FLOAT * (frozen + trained + running + 1000) + 8  # BatchNorm's step counter is int64
    assert memory.optimizer == FLOAT * (2 * trained + 4)
    assert memory.parameter_count == frozen + trained


class Projecting(torch.optim.Optimizer):
    """Like GaLore: state inside a Python object, a view of a larger matrix, and large temporaries in the first step."""

    def __init__(self, parameters, rank, temporary):
        super().__init__(parameters, {"rank": rank})
        self.temporary = temporary

    @torch.no_grad()
    def step(self, closure=None):  # noqa: ARG002
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "projector" not in state:
                    work = torch.zeros(self.temporary)
                    square = torch.zeros(p.shape[-1], p.shape[-1])
                    state["projector"] = SimpleNamespace(matrices=[square[: group["rank"]]])
                    del work
                (matrix,) = state["projector"].matrices
                p.add_(p.grad @ matrix.t() @ matrix, alpha=-0.1)


def test_optimizer_holds_what_stays_and_temporaries_what_goes():
    class Method(TinyMethod):
        def optimizer(self, model):
            return Projecting(model.parameters(), rank=2, temporary=50_000)

    first, second = 10, 20
    workload = ModelWorkload(
        lambda: nn.Sequential(nn.Linear(first, second, bias=False), nn.Linear(second, 1, bias=False)), (first,)
    )
    memory = predict_tiny(workload, Method(), batch_size=1)
    # The peak: the second weight's matrix is made, next to the first weight's finished state and all gradients.
    weights = first * second + second
    assert memory.parameters == memory.gradients == FLOAT * weights
    assert memory.optimizer == FLOAT * (first**2 + second**2)
    assert memory.temporaries == FLOAT * 50_000
    assert memory.activations == FLOAT * (first + 1)  # the batch and the loss


def test_a_rare_event_counts_when_it_is_due_in_neither_of_the_two_steps():
    calls = []

    def run(model, optimizer):
        assert isinstance(model, nn.Module)
        assert isinstance(optimizer, torch.optim.Optimizer)
        calls.append(torch.zeros(300_000).sum())

    plain = predict_tiny()
    for period, offset in ((200, 0), (1, 0), (10, 1)):
        assert predict_tiny(method=TinyMethod(events=[rare_event(run, period, offset)])) == plain
    assert not calls
    due_later = predict_tiny(method=TinyMethod(events=[rare_event(run, 10, 9)]))
    assert len(calls) == 1
    assert due_later.temporaries >= FLOAT * 300_000
    assert due_later.gradients == due_later.parameters


def test_parameters_that_a_method_replaces_stay_parameters():
    class Shrinking(TinyMethod):
        def after_step(self, model, optimizer, step):  # noqa: ARG002
            model.spare = nn.Parameter(torch.zeros(40_000 if step == 0 else 80_000))
            return "shapes"

    before = predict_tiny(ModelWorkload(perceptron, (N,)), batch_size=1)
    after = predict_tiny(ModelWorkload(perceptron, (N,)), Shrinking(), batch_size=1)
    # While the second replacement is made, the first is still there.
    assert after.parameters == before.parameters + FLOAT * 120_000


def test_cuda_takes_less_for_dropout_and_more_for_a_default_optimizer():
    class Default(TinyMethod):
        def optimizer(self, model):
            return torch.optim.AdamW(model.parameters())

    on_cuda, on_cpu = (predict_tiny(batch_size=64, device=device) for device in ("cuda", "cpu"))
    assert on_cuda.activations < on_cpu.activations
    loop = predict_tiny(method=Default(), batch_size=1, device="cpu")
    multi_tensor = predict_tiny(method=Default(), batch_size=1, device="cuda")
    assert multi_tensor.temporaries >= multi_tensor.parameters > loop.temporaries


def test_a_question_for_a_device_is_no_operation():
    """Most of what modes below see of a step on fake tensors are such questions; here the mode itself answers."""
    seen = {kind: set() for kind in (Operations, TorchDispatchMode)}

    class Shown(Operations):
        def seen(self, func, given, result):  # noqa: ARG002
            seen[Operations].add(func.namespace)

    class Raw(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen[TorchDispatchMode].add(func.namespace)
            return func(*args, **(kwargs or {}))

    for mode in (Shown, Raw):
        with FakeTensorMode():
            layer = nn.Linear(3, 2)
            with mode():
                loss = layer(torch.ones(4, 3)).sum()
                loss.backward()
            assert loss.device == layer.weight.grad.device == torch.device("cpu")
    assert seen == {Operations: {"aten"}, TorchDispatchMode: {"aten", "prim"}}


def test_nothing_of_a_prediction_stays_behind():
    predict_tiny(device="cuda", precision="bf16")
    workload, method = TinyWorkload(), TinyMethod()
    model = workload.build()
    step = TrainStep(model, method, method.optimizer(model), workload.loss, "fp32", "cpu")
    assert torch.isfinite(step(next(workload.batches("train", 4, 0, True))))
    assert type(torch.ones(1)) is torch.Tensor


def test_all_tensors_within_objects_are_found_once():
    one, two, three, four = (torch.zeros(1) for _ in range(4))
    holder = SimpleNamespace(a=one, b=[two, {"k": (three, one)}], c="text", d=torch, e=None)
    holder.itself = holder
    holder.module = nn.Sequential(nn.Linear(1, 1))
    holder.module[0].extra = four
    found = {id(tensor) for tensor in reachable_tensors(holder)}
    assert found == {id(t) for t in (one, two, three, four, *holder.module.parameters())}
    assert len(reachable_tensors(holder)) == len(found)


@pytest.mark.parametrize(
    ("field", "value"),
    [("batch_size", 0), ("batch_size", -3), ("device", "tpu"), ("precision", "int4"), ("precision", "tf32")],
)
def test_a_wrong_argument_is_one_line_that_names_it(field, value):
    with pytest.raises(ValueError, match=field):
        predict_tiny(**{field: value})
