"""Plug-ins of one kind by name: of the modules of a package, and of those that the environment names."""

import functools
import importlib
import os
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, TypeVar

from bench.errors import ConfigError

T = TypeVar("T")


@dataclass
class Registry(Generic[T]):
    """Plug-ins by name: of a package, and of modules that a variable of the environment names, separated by commas.

    A module names its plug-in in a constant, such as ``MEASURE``, or several in ``MEASURES``. The variable counts for
    the processes of cells as well, which have the environment of the one that starts them.
    """

    kind: str  # what they are, as in "measure"
    package: str
    missing: Callable[[Any], list[str]]  # the members that something lacks to be a plug-in of this kind
    variable: str = "BENCH_PLUGINS"
    error: type[Exception] = ConfigError

    def all(self) -> dict[str, T]:
        """Return every plug-in.

        Raises the registry's error: a module that cannot be imported, a member is missing, or a name is taken.
        """
        found = dict(self._own)
        for module in filter(None, os.environ.get(self.variable, "").split(",")):
            for plugin in self._of(self._imported(module)):
                if missing := self.missing(plugin):
                    raise self.error(f"{self.kind} of {module} lacks {', '.join(missing)}.")
                if found.setdefault(plugin.name, plugin) is not plugin:
                    raise self.error(
                        f"{self.kind} {plugin.name!r} of {module} has a name that is taken; choose another."
                    )
        return found

    def names(self) -> tuple[str, ...]:
        """Return the names of all plug-ins."""
        return tuple(sorted(self.all()))

    def named(self, name: str) -> T:
        """Return the plug-in of that name; raises the registry's error if there is none."""
        plugins = self.all()
        if name not in plugins:
            raise self.error(f"{self.kind} is {name!r}; allowed: {', '.join(sorted(plugins))}.")
        return plugins[name]

    @functools.cached_property
    def _own(self) -> dict[str, T]:
        """Return the plug-ins of the package."""
        names = [module.name for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__)]
        modules = [importlib.import_module(f"{self.package}.{name}") for name in names]
        return {plugin.name: plugin for module in modules for plugin in self._of(module)}

    def _of(self, module: ModuleType) -> Iterator[Any]:
        content, constant = vars(module), self.kind.upper()
        yield from (content[constant],) if constant in content else ()
        yield from content.get(f"{constant}S", ())

    def _imported(self, name: str) -> ModuleType:
        try:
            return importlib.import_module(name)
        except self.error:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise self.error(f"{self.variable} has {name!r}, which cannot be imported ({reason}).") from None
