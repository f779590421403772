"""Ties between weights as models of Hugging Face declare them: by the names of parameters.

Such a model ties its weights again after loading, and leaves tied ones out of what it saves. What its declaration
names ``….weight`` is no parameter of a tensorized layer, whose cores and diagonals are tied instead.

A declaration is the attribute ``all_tied_weights_keys`` of a module, a mapping from tied names to those they are tied
to, and what it is made from, ``_tied_weights_keys`` (transformers 5).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn

from comera.layers import DIAGONALS, TensorTrainLayer, TiedTTMLinear


def _declarations(model: nn.Module) -> Iterator[tuple[nn.Module, dict[str, str]]]:
    for module in model.modules():
        declared = getattr(module, "all_tied_weights_keys", None)
        if isinstance(declared, dict):
            yield module, declared


def tie_as_declared(model: nn.Module) -> None:
    """Tie weights without storage as their model declares it.

    A model that is built to be loaded ties its weights only once they are there, and its layers are replaced before.
    """
    for module, declared in _declarations(model):
        parameters = dict(module.named_parameters(remove_duplicate=False))
        for target, source in declared.items():
            if target in parameters and source in parameters and parameters[target].is_meta:
                owner, _, name = target.rpartition(".")
                module.get_submodule(owner).register_parameter(name, parameters[source])


def redeclare_ties(model: nn.Module) -> None:
    """Have every module of the model that declares ties name the parameters that are tied now."""
    for module, declared in _declarations(model):
        modules = dict(module.named_modules(remove_duplicate=False))
        present: dict[str, str] = {}
        for target, source in declared.items():
            to, of = _cores(modules, target), _cores(modules, source)
            if to is None or of is None:
                present[target] = source
            else:
                present |= {f"{to}.{name}": f"{of}.{name}" for name in ("packed_cores", DIAGONALS)}
        if present != declared:
            module.all_tied_weights_keys, module._tied_weights_keys = present, dict(present)  # type: ignore[assignment]


def redeclare_dense_ties(model: nn.Module) -> None:
    """Have every module of a model that has been made dense again name weights where it named cores."""
    for module, declared in _declarations(model):
        present: dict[str, str] = {}
        for target, source in declared.items():
            if target.endswith(f".{DIAGONALS}"):
                continue
            to, of = (name.removesuffix(".packed_cores").removesuffix(".embedding") for name in (target, source))
            present |= {target: source} if to == target else {f"{to}.weight": f"{of}.weight"}
        if present != declared:
            module.all_tied_weights_keys, module._tied_weights_keys = present, dict(present)  # type: ignore[assignment]


def _cores(modules: Mapping[str, nn.Module], weight: str) -> str | None:
    """Return the name of the module with the cores that stand in for a weight, None if it is dense."""
    owner, _, name = weight.rpartition(".")
    layer = modules.get(owner) if name == "weight" else None
    if isinstance(layer, TiedTTMLinear):
        return f"{owner}.embedding"
    return owner if isinstance(layer, TensorTrainLayer) else None
