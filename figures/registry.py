"""All figures and tables by name.

An artifact is found

* in a module of ``figures/artifacts`` that names it in ``ARTIFACT``, or several of one subject in ``ARTIFACTS``;
* through an entry point of another package, group :data:`ENTRY_POINTS`;
* through :func:`register`, in a module that the variable :data:`VARIABLE` of the environment names.

No other module of the figures names an artifact.
"""

import functools
import importlib
import importlib.metadata
import os
import pkgutil
from typing import Any

from figures import artifacts as folder
from figures.artifact import Artifact
from figures.text import InputError

#: The group of entry points by which another package offers artifacts, each under its name.
ENTRY_POINTS = "comera_bench.figures"

#: Names modules, separated by commas, that register artifacts when they are imported.
VARIABLE = "FIGURES_PLUGINS"


class ArtifactError(InputError):
    """An artifact that there cannot be."""


#: Artifacts that :func:`register` has made known, by name.
_registered: dict[str, Artifact[Any]] = {}


def register(artifact: Artifact[Any]) -> Artifact[Any]:
    """Make an artifact known by its name in this process; raises ArtifactError where another one has this name."""
    if artifacts().get(artifact.name, artifact) is not artifact:
        raise ArtifactError(_taken(artifact.name))
    _registered[artifact.name] = artifact
    return artifact


def _taken(name: str) -> str:
    return f"artifact {name!r} has a name that is taken; choose another."


@functools.cache
def _found() -> dict[str, Artifact[Any]]:
    """Artifacts of this folder and of other packages, by name."""
    names = [module.name for module in pkgutil.walk_packages(folder.__path__, f"{folder.__name__}.")]
    modules = [importlib.import_module(name) for name in names]
    named = [getattr(module, "ARTIFACTS", None) or [module.ARTIFACT] for module in modules]
    found = {one.name: one for of_module in named for one in of_module}
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            other = point.load()
        except Exception as error:
            raise ArtifactError(f"artifact {point.name!r} of {point.value} cannot be imported ({error}).") from None
        if not isinstance(other, Artifact):
            raise ArtifactError(f"artifact {point.name!r} of {point.value} is a {type(other).__name__}, no Artifact.")
        if other.name in found:
            raise ArtifactError(_taken(other.name))
        found[other.name] = other
    return found


def artifacts() -> dict[str, Artifact[Any]]:
    """All artifacts by name, in their order.

    Raises ArtifactError for a plug-in that cannot be imported, is no artifact, or has a name that is taken.
    """
    for name in filter(None, os.environ.get(VARIABLE, "").split(",")):
        try:
            importlib.import_module(name)
        except ArtifactError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ArtifactError(f"{VARIABLE} has {name!r}, which cannot be imported ({reason}).") from None
    everything = [*_found().values(), *_registered.values()]
    return {one.name: one for one in sorted(everything, key=lambda one: (one.order, one.name))}
