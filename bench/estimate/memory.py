"""Predicted memory: the peak of a training step, by category, computed without running it.

The step runs on fake tensors: all shapes, types and lifetimes are real, the data is absent, so a step of any size
costs a fraction of a second and no memory. :class:`StorageLedger` books every tensor storage from birth to death.
On the same operations, a run on fake and one on real tensors book the same bytes, and so does the CPU allocator.

Categories, in the order in which a storage that fits several is claimed:

* parameters: everything the model holds, frozen weights and buffers included;
* gradients: what ``.grad`` of a parameter holds after backward, booked from its birth; of a sparse one, its indices
  and its values, which are no copies: they are the row numbers of the batch and what backward gave for each of them;
* optimizer: what optimizer and method hold between steps, wherever it sits (GaLore's projection matrices lie inside a
  Python object, and as views keep the larger matrix they were cut from);
* activations: born in forward, whether kept for backward or passing, and the batch itself;
* temporaries: born in backward, in the optimizer's step or in the method's own work, and gone with it.

The peak is the highest of two whole steps, since optimizer state is born and GaLore decomposes in the first while the
second begins with that state in place, followed by those rare events of the method that fall due in neither.

Counted are the tensors of PyTorch. Not counted is what no tensor shows: the allocator's rounding, what lives only
inside one kernel, the libraries themselves. See ``bench.estimate.cuda_operations`` for what makes a prediction one for
CUDA.

Fake tensors must not outlive their prediction. Code that keeps a tensor at module level, made while a prediction runs,
would hand a fake one to the next real step; the bench makes predictions in processes of their own.
"""

import contextlib
import functools
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any, Literal, get_args

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.estimate.cpu_operations import held_inside
from bench.estimate.cuda_operations import cuda_operations, use_cuda_defaults
from bench.estimate.sparse_gradients import ASKS_DEVICE, SparseShapes, handed_over, parts
from bench.protocol import Batch, Method, Workload
from bench.step.low_precision import adapted_model, precision_unsupported
from bench.step.train_step import TrainStep, rare_work
from comera.low_precision.scaling import Kernel

Category = Literal["parameters", "gradients", "optimizer", "activations", "temporaries"]
CATEGORIES: tuple[Category, ...] = get_args(Category)
PREDICTED_DEVICES = ("cpu", "cuda")  # devices for which a prediction can be made

#: The error that a prediction is allowed, by kind of device: rounding by the allocator and what lives inside kernels.
TOLERANCE = {"cpu": 0.02, "cuda": 0.05}

_STEPS = 2


@dataclass(frozen=True)
class PredictedMemory:
    """Bytes in use at the moment of the peak, by category. The five categories add up to ``peak``.

    ``parameter_count`` (trained and frozen) and ``stored``, the bytes of the finished model, come along.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    temporaries: int
    peak: int
    parameter_count: int
    stored: int

    def mib(self) -> dict[str, float]:
        """Return the categories and the peak in MiB, by name."""
        return {name: getattr(self, name) / 2**20 for name in (*CATEGORIES, "peak")}


def predict_memory(
    workload: Workload,
    method: Method,
    batch_size: int,
    precision: str,
    device: str,
    seed: int,
    checkpoint: bool = False,
) -> PredictedMemory:
    """Return the peak memory of training ``workload`` with ``method``, for ``device`` "cpu" or "cuda".

    :func:`bench.estimate.work.predict` gives the work as well, in the same pass. Raises ValueError: a batch size below
    1, an unknown device, a precision that the device does not offer.
    """
    with fake_training(workload, method, batch_size, precision, device, seed, checkpoint) as (step, batch):
        return trace_memory(step, batch)


@contextlib.contextmanager
def fake_training(
    workload: Workload,
    method: Method,
    batch_size: int,
    precision: str,
    device: str,
    seed: int,
    checkpoint: bool = False,
) -> Iterator[tuple[TrainStep, Batch]]:
    """Build model, optimizer and step on fake tensors; yield the step and a fake copy of a real batch.

    TF32 changes no sizes, so ``tf32`` is traced as ``fp32``. The block must be left before anything real runs.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; a whole number from 1 up is expected.")
    if device not in PREDICTED_DEVICES:
        raise ValueError(f"device is {device!r}; memory is predicted for {' and '.join(PREDICTED_DEVICES)}.")
    if reason := precision_unsupported(precision, device):
        raise ValueError(reason)
    real = next(iter(workload.batches("train", batch_size, seed, True)))
    unique_counts = {name: tensor.unique().numel() for name, tensor in real.items() if tensor.dtype == torch.int64}
    traced_precision = "fp32" if precision == "tf32" else precision
    operations = cuda_operations() if device == "cuda" else contextlib.nullcontext()
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, operations, contextlib.ExitStack() as shapes:
        kernel: Kernel = "native" if device == "cuda" else "emulated"
        model = adapted_model(method, workload.build(), workload.targets(), precision, kernel)
        optimizer = method.optimizer(model)
        if device == "cuda":
            use_cuda_defaults(optimizer)
        batch: Batch = {name: fake.from_tensor(tensor) for name, tensor in real.items()}
        for name, count in unique_counts.items():  # for a look-up of unique rows
            batch[name].unique_count = count  # type: ignore[attr-defined]
        shapes.enter_context(SparseShapes([batch[name] for name in unique_counts], device))
        yield TrainStep(model, method, optimizer, workload.loss, traced_precision, "cpu", checkpoint=checkpoint), batch


def trace_memory(
    step: TrainStep, batch: Batch, *meters: AbstractContextManager[object], ledger: "StorageLedger | None" = None
) -> PredictedMemory:
    """Run a fresh step on the tensors it has, fake or real, and return what it held at its peak.

    It is advanced by two steps and its rare events. ``meters`` are entered around the last step alone, so that its work
    is metered in the same pass. ``ledger``, a fresh one for the step, books the storages; None: one made here.
    """
    model, optimizer, method = step.model, step.optimizer, step.method
    ledger = ledger or StorageLedger(step)

    def claim_what_stays() -> None:
        ledger.claim("parameters", reachable_tensors(model))
        ledger.claim("gradients", tensors_in([p.grad for p in model.parameters()]))
        ledger.claim("optimizer", reachable_tensors([optimizer, method]))

    claim_what_stays()
    ledger.claim("activations", batch.values())
    with ledger:
        for number in range(_STEPS):
            with contextlib.ExitStack() as around:
                for meter in meters if number == _STEPS - 1 else ():
                    around.enter_context(meter)
                loss = step.forward_backward(batch)
                claim_what_stays()
                step.update()
                del loss  # whoever called the step would hold it until here
            claim_what_stays()
        for run in rare_work(step, _STEPS):
            run()
            claim_what_stays()
    return PredictedMemory(
        **ledger.at_peak(),
        peak=ledger.peak,
        parameter_count=sum(p.numel() for p in model.parameters()),
        stored=method.stored_size(model),
    )


@dataclass(slots=True)
class _Entry:
    """A storage in the ledger; times count births. ``died`` is None while it lives."""

    bytes: int
    born: int
    category: Category
    died: int | None = None


@functools.cache
def _argument_names(operation: Any) -> tuple[str, ...]:
    return tuple(argument.name for argument in operation._schema.arguments)


class Operations(TorchDispatchMode):
    """Shows each operation inside the block to :meth:`seen`: the operation, its arguments by name, its result.

    To ask a fake tensor for its device is none.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is ASKS_DEVICE:
            return args[0].device
        result = handed_over(func, args)
        if result is None:
            result = func(*args, **(kwargs or {}))
        self.seen(func, dict(zip(_argument_names(func), args, strict=False)) | (kwargs or {}), result)
        return result

    def seen(self, func: Any, given: Mapping[str, Any], result: Any) -> None:
        """Handle the result of an operation; each mode defines it."""
        raise NotImplementedError


class StorageLedger(Operations):
    """Books every tensor storage that operations inside the block allocate, and when it is freed.

    A storage counts once however many tensors view it, with all its bytes, from the operation that makes it until the
    last reference is gone. Its category is settled later, by identity, through :meth:`claim`; one that nobody claims
    is an activation if the step was in its forward when it was born, else a temporary. ``peak`` is the highest number
    of bytes in use at one time.
    """

    def __init__(self, step: TrainStep) -> None:
        super().__init__()
        self.peak = 0
        self._step = step
        self._in_use = self._births = self._peak_at = 0
        self._entries: list[_Entry] = []
        self._living: dict[int, tuple[weakref.ref[torch.UntypedStorage], _Entry]] = {}

    def claim(self, category: Category, tensors: Iterable[torch.Tensor]) -> None:
        """Settle the category of these tensors' storages, unless one before it in the order has claimed them."""
        for tensor in tensors:
            entry = self._book(tensor)
            entry.category = min(entry.category, category, key=CATEGORIES.index)

    def at_peak(self) -> dict[Category, int]:
        """Return the bytes by category at the moment of the peak."""
        sizes = dict.fromkeys(CATEGORIES, 0)
        for entry in self._entries:
            if entry.born <= self._peak_at and (entry.died is None or entry.died >= self._peak_at):
                sizes[entry.category] += entry.bytes
        return sizes

    def seen(self, func: Any, given: Mapping[str, Any], result: Any) -> None:
        """Book what an operation returns, and what it held inside until then."""
        for tensor in [*tensors_in(result), *held_inside(func, given)]:
            self._book(tensor)

    def _book(self, tensor: torch.Tensor) -> _Entry:
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        known = self._living.get(key)
        if known and known[1].bytes == size:
            return known[1]
        if known:  # resized in place: the old size ends here
            self._close(key)
        self._births += 1
        entry = _Entry(size, self._births, "activations" if self._step.phase == "forward" else "temporaries")
        self._entries.append(entry)
        self._living[key] = (weakref.ref(storage, lambda _: self._close(key)), entry)
        self._in_use += size
        if self._in_use > self.peak:
            self.peak, self._peak_at = self._in_use, self._births
        return entry

    def _close(self, key: int) -> None:
        _, entry = self._living.pop(key)
        entry.died = self._births
        self._in_use -= entry.bytes


def reachable_tensors(root: object) -> list[torch.Tensor]:
    """Return all tensors that ``root`` holds in attributes, dicts, sequences and objects inside those.

    Classes, functions and Python modules are not searched. A sparse tensor gives its indices and its values.
    """
    found: list[torch.Tensor] = []
    seen: dict[int, object] = {}
    pending: list[object] = [root]
    while pending:
        value = pending.pop()
        if id(value) in seen or isinstance(value, type | FunctionType | MethodType | ModuleType):
            continue
        seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            found.extend(parts(value))
        elif isinstance(value, Mapping):
            pending.extend(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            pending.extend(value)
        elif hasattr(value, "__dict__"):
            pending.extend(vars(value).values())
    return found


def tensors_in(value: object) -> list[torch.Tensor]:
    """Return the tensors among an operator's arguments or results; of a sparse one, its indices and its values."""
    if isinstance(value, torch.Tensor):  # as most results are
        return [*parts(value)]
    return [part for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor) for part in parts(leaf)]
