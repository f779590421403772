"""All figures and tables by name.

An artifact is found in a module that names it in ``ARTIFACT``, or several of one subject in ``ARTIFACTS``: one of
``figures/artifacts``, or one that the variable ``FIGURES_PLUGINS`` of the environment names. No other module of the
figures names an artifact.
"""

from typing import Any

from bench.core.plugins import Registry
from figures.artifact import Artifact
from figures.text import InputError


class ArtifactError(InputError):
    """An artifact that there cannot be."""


_REGISTRY: Registry[Artifact[Any]] = Registry(
    kind="artifact",
    package="figures.artifacts",
    missing=lambda artifact: [name for name in Artifact.__dataclass_fields__ if not hasattr(artifact, name)],
    variable="FIGURES_PLUGINS",
    error=ArtifactError,
)


def artifacts() -> dict[str, Artifact[Any]]:
    """All artifacts by name, in their order.

    Raises ArtifactError for a plug-in that cannot be imported, is no artifact, or has a name that is taken.
    """
    return {one.name: one for one in sorted(_REGISTRY.all().values(), key=lambda one: (one.order, one.name))}


def by_name() -> dict[str, list[Artifact[Any]]]:
    """All names that can be asked for, each with the artifact and then its parts.

    Raises ArtifactError as :func:`artifacts`, and for a part of nothing.
    """
    everything = artifacts().values()
    found = {one.name: [one] for one in everything if not one.part_of}
    for one in (one for one in everything if one.part_of):
        if one.part_of not in found:
            raise ArtifactError(f"part_of of {one.name} is {one.part_of!r}; allowed: {', '.join(found)}.")
        found[one.part_of].append(one)
    return found
