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
