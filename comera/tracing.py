"""Trace of the calls that a module's forward makes to its children, as far as ``torch.fx`` can follow it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from comera.layers import TTLinear

if TYPE_CHECKING:
    from torch.fx import Node


def traced(module: nn.Module, arguments: dict[str, Any] | None = None) -> list[Node]:
    """Return the operations of a module's forward, each call of a child as one; none where it cannot be followed.

    ``arguments`` are values of some of its arguments, by name.
    """
    from torch.fx import Tracer  # here, since it costs a third of the import of comera

    class ChildByChild(Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002
            return True

    try:
        return [*ChildByChild().trace(module, arguments).nodes]
    except Exception:
        return []


def siblings_in(model: nn.Module) -> dict[TTLinear, tuple[TTLinear, ...]]:
    """Return the TT layers that read one input together with others, such as query, key and value, with those.

    Found are children of one module whose forward can be followed and gives them the same value, if whatever it returns
    depends on all of them: what two losses reach apart from one another must have no part in common.

    Example:
        >>> from comera import TT, tensorize
        >>> class Two(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 4)
        ...
        ...     def forward(self, x):
        ...         return self.one(x).sum() + self.other(x).sum()
        >>> model = tensorize(Two(), {"*": TT(ranks=2, order=2)})
        >>> siblings_in(model)[model.one] == (model.one, model.other)
        True
    """
    found: dict[TTLinear, tuple[TTLinear, ...]] = {}
    for module in model.modules():
        children = {name: child for name, child in module.named_children() if type(child) is TTLinear}
        by_input: dict[Node, dict[TTLinear, None]] = {}
        behind: dict[Node, set[TTLinear]] = {}  # the layers that a value depends on
        returned: list[set[TTLinear]] = []
        for node in traced(module) if len(children) > 1 else ():
            behind[node] = set().union(*(behind[before] for before in node.all_input_nodes))
            child = children.get(str(node.target)) if node.op == "call_module" else None
            if child is not None and len(node.all_input_nodes) == 1:
                by_input.setdefault(node.all_input_nodes[0], {})[child] = None
                behind[node].add(child)
            if node.op == "output":
                returned = [behind[value] for value in node.all_input_nodes]
        for layers in by_input.values():
            if len(layers) > 1 and all(layers.keys() <= one for one in returned):
                found |= dict.fromkeys(layers, tuple(layers))
    return found
