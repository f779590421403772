"""Plug-ins of one kind, found by name: in the modules of a package, in other packages, or registered by hand."""

import functools
import importlib
import importlib.metadata
import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from bench.errors import ConfigError

T = TypeVar("T")

#: Plug-ins registered by hand, by kind and name. The process of a cell takes over those of the one that starts it.
BY_HAND: dict[str, dict[str, Any]] = {}
VARIABLE = "BENCH_PLUGINS"  # names modules, separated by commas, that register plug-ins when they are imported


def import_plugins() -> None:
    """Import the modules that ``BENCH_PLUGINS`` names, so that what they register can be asked for by name.

    Raises ConfigError: one of them cannot be imported.
    """
    for name in filter(None, os.environ.get(VARIABLE, "").split(",")):
        try:
            importlib.import_module(name)
        except ConfigError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{VARIABLE} has {name!r}, which cannot be imported ({reason}).") from None


def adopt(plugins: Mapping[str, Mapping[str, Any]]) -> None:
    """Take over the plug-ins that another process has registered by hand, :data:`BY_HAND` there."""
    for kind, own in plugins.items():
        BY_HAND.setdefault(kind, {}).update(own)


@dataclass
class Registry(Generic[T]):
    """Plug-ins by name: of a package of the bench, of entry points, and those registered by hand.

    Modules of the package name theirs in a constant, such as ``MEASURE``, or several in ``MEASURES``; other packages do
    through entry points of a group, such as ``comera_bench.measures``.
    """

    kind: str  # what they are, as in "measure"
    package: str
    missing: Callable[[Any], list[str]]  # the members that something lacks to be a plug-in of this kind
    origin: Callable[[Any], str]  # module and name of a plug-in; one from the same place is the same plug-in

    def register(self, plugin: T) -> T:
        """Make a plug-in known by its ``name``, in this process and in those of its cells; a decorator of classes.

        Raises ConfigError: a member is missing, or another plug-in has this name.
        """
        name = self._name_of(plugin, self.origin(plugin), self.all())
        BY_HAND.setdefault(self.kind, {})[name] = plugin
        return plugin

    def all(self) -> dict[str, T]:
        """Return every plug-in."""
        return {**self._found, **BY_HAND.get(self.kind, {})}

    def names(self) -> tuple[str, ...]:
        """Return the names of all plug-ins."""
        return tuple(sorted(self.all()))

    def named(self, name: str) -> T:
        """Return the plug-in of that name; raises ConfigError if there is none."""
        plugins = self.all()
        if name not in plugins:
            raise ConfigError(f"{self.kind} is {name!r}; allowed: {', '.join(self.names())}.")
        return plugins[name]

    @functools.cached_property
    def _found(self) -> dict[str, T]:
        """Return the plug-ins of the package and of entry points."""
        found: dict[str, T] = {}
        for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__):
            content = vars(importlib.import_module(f"{self.package}.{module.name}"))
            own = (content.get(self.kind.upper()), *content.get(f"{self.kind.upper()}S", ()))
            found |= {plugin.name: plugin for plugin in own if plugin is not None}
        for point in importlib.metadata.entry_points(group=f"comera_bench.{self.kind}s"):
            try:
                other = point.load()
            except Exception as error:
                reason = f"cannot be imported ({error})"
                raise ConfigError(f"{self.kind} {point.name!r} of {point.value} {reason}.") from None
            found[self._name_of(other, point.value, found)] = other
        return found

    def _name_of(self, plugin: Any, where: str, others: Mapping[str, T]) -> str:
        """Return the name of a plug-in, checked: it has all members, and no other one has the name."""
        if missing := self.missing(plugin):
            raise ConfigError(f"{self.kind} {where} lacks {', '.join(missing)}.")
        other = others.get(plugin.name)
        if other is not None and self.origin(other) != self.origin(plugin):
            raise ConfigError(f"{self.kind} {plugin.name!r} of {where} has a name that is taken; choose another.")
        return str(plugin.name)
