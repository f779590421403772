"""Registration with the package transformers, when that is imported and not before.

``import comera`` must stay light, and transformers has no entry points by which it would find comera. So comera puts
a finder before the others of ``sys.meta_path``. It lets them find the module that holds ``PreTrainedModel``, and has
:mod:`comera.hugging_face.transformers_models` registered as soon as the module has run.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MODULE = "transformers.modeling_utils"


def register() -> None:
    """Have transformers save, load and resize tensorized models, now or once it is imported."""
    if MODULE in sys.modules:
        importlib.import_module(MODULE)  # another thread may be running it
        _register_now()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _register_now() -> None:
    importlib.import_module("comera.hugging_face.transformers_models").register()


class _Finder(MetaPathFinder):
    """Finds :data:`MODULE` as the finders behind it do, and registers comera once the module has run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != MODULE:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: ModuleType) -> None:
                run(module)
                _register_now()

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec
