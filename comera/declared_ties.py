"""Ties between weights as models of Hugging Face declare them: by the names of parameters.

Such a model ties its weights again after loading, and leaves tied ones out of what it saves. What its declaration
names ``….weight`` is no parameter of a tensorized layer, whose cores and diagonals are tied instead.
"""

from __future__ import annotations

from torch import nn

from comera.layers import DIAGONALS, TensorTrainLayer, TiedTTMLinear


def redeclare_ties(model: nn.Module) -> None:
    """Have every module of the model that declares ties name the parameters that are tied now.

    A declaration is the attribute ``all_tied_weights_keys``, a mapping from tied names to those they are tied to, and
    what it is made from, ``_tied_weights_keys`` (transformers 5).
    """
    for module in model.modules():
        declared = getattr(module, "all_tied_weights_keys", None)
        if not isinstance(declared, dict):
            continue
        present: dict[str, str] = {}
        for target, source in declared.items():
            to, of = _cores(module, target), _cores(module, source)
            if to is None or of is None:
                present[target] = source
            else:
                present |= {f"{to}.{name}": f"{of}.{name}" for name in ("packed_cores", DIAGONALS)}
        if present != declared:
            module.all_tied_weights_keys, module._tied_weights_keys = present, dict(present)  # type: ignore[assignment]


def _cores(model: nn.Module, weight: str) -> str | None:
    """The name of the module with the cores that stand in for a weight, None if it is dense."""
    owner, _, name = weight.rpartition(".")
    layer = model.get_submodule(owner) if name == "weight" else None
    if isinstance(layer, TiedTTMLinear):
        return f"{owner}.embedding"
    return owner if isinstance(layer, TensorTrainLayer) else None
