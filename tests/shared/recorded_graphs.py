"""A stand-in for CUDA Graphs on a CPU: it records what it is given, and replays it by calling it again."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class NoCopiesOfNumbers(TorchDispatchMode):
    """Refuses tensors of Python's numbers: on a device they are copied from the CPU, which no capture allows."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten.lift_fresh.default, "a captured step makes a tensor of Python's numbers"
        return func(*args, **(kwargs or {}))


class RecordedGraphs:
    """A capture runs nothing, and every replay leaves result and gradients in the same tensors, as on a device.

    Attributes:
        log: what has been asked for, in order.
    """

    def __init__(self, parameters=()):
        self.parameters = list(parameters)
        self.log = []

    def buffer(self, like):
        self.log.append(f"buffer {tuple(like.shape)}")
        return torch.full_like(like, -1)

    def fill(self, buffer, source):
        buffer.copy_(source)

    def warm_up(self, work):
        self.log.append("warm up")
        return work()

    def capture(self, work):
        self.log.append("capture")
        assert all(parameter.grad is None for parameter in self.parameters)
        gradients = [torch.zeros_like(p) if p.requires_grad else None for p in self.parameters]
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        result = torch.zeros(())

        def replay():
            self.log.append("replay")
            with NoCopiesOfNumbers():
                result.copy_(work())
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                if gradient is not None and parameter.grad is not None:
                    gradient.copy_(parameter.grad)
                    parameter.grad = gradient

        return replay, result
