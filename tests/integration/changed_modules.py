"""Changes modules as they are imported, for stand-ins that are `sitecustomize` of every process of a run."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType


class ChangedModules(MetaPathFinder):
    """Finder of modules that are changed when they have been imported.

    Args:
        changes: module → function that changes it.
    """

    def __init__(self, changes: Mapping[str, Callable[[Any], None]]) -> None:
        self._changes = changes

    def install(self) -> None:
        """Find these modules before others do."""
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module's own spec, whose loader changes it."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname in self._changes else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._changes[fullname](module)

        # A loader says nothing of when it has loaded, so that its own method has to be another one.
        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
