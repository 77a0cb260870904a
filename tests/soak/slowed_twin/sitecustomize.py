"""Makes each step of one case take longer; Python imports it at its start from `PYTHONPATH`.

`SLOWED_BY` says by which share of the step, `SLOWED_CASE` which case it is.
"""

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import time
from pathlib import Path
from types import ModuleType

PATCHED = "harness.worker.session.session"
SHARE = float(os.environ.get("SLOWED_BY", "0"))


class Slowing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads the module as it is, and then puts the pause into its steps."""

    def __init__(self) -> None:
        self._loader: importlib.abc.Loader | None = None

    def find_spec(self, fullname, path=None, target=None):
        if fullname != PATCHED or self._loader is not None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        module.WorkerSession.step = slowed(module.WorkerSession.step)


def slowed(step):
    """The step and a pause after it, which spins: a sleep is longer than it says."""

    @functools.wraps(step)
    def stepping(session, feeds):
        start = time.perf_counter()
        done = step(session, feeds)
        if is_slowed():
            now = time.perf_counter()
            end = now + SHARE * (now - start)
            while time.perf_counter() < end:
                pass
        return done

    return stepping


@functools.cache
def is_slowed() -> bool:
    """A worker's output goes to the log of its case."""
    return os.environ["SLOWED_CASE"] in str(Path("/proc/self/fd/1").readlink())


if SHARE:
    sys.meta_path.insert(0, Slowing())
