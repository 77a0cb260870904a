"""CPUs in the place of a TPU VM's devices, in every process of a run that has this folder on its path."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType


def on_cpus(tpu_system: Any) -> None:
    def runtime() -> Any:
        import tpu_jobs

        return tpu_system.TpuRuntime(
            resolve=tpu_jobs.Described,
            initialize=tpu_jobs.topology_of_chips,
            distribute=tpu_jobs.on_cpus,
            shut_down=lambda _: None,
        )

    tpu_system.local_runtime = runtime


def with_chips(accelerators: Any) -> None:
    found = accelerators.host_devices
    chips = tuple(f"/dev/accel{k}" for k in range(4))
    accelerators.host_devices = lambda *args, **kw: replace(found(*args, **kw), tpus=chips)
    accelerators.lack_of_tensorflow = lambda device: None


CHANGED: dict[str, Callable[[Any], None]] = {
    "strategies.tf_bridge.tpu.tpu_system": on_cpus,
    "harness.provision.accelerators": with_chips,
}


class StandIn(MetaPathFinder):
    """Changes some modules when they have been imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in CHANGED else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            CHANGED[fullname](module)

        # A loader says nothing of when it has loaded, so that its own method has to be another one.
        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, StandIn())
