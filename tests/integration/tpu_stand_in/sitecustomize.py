"""CPUs in the place of a TPU VM's devices, in every process of a run that has this folder on its path."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from changed_modules import ChangedModules


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
    host_devices = accelerators.host_devices
    chips = tuple(f"/dev/accel{k}" for k in range(4))
    accelerators.host_devices = lambda *args, **kw: replace(host_devices(*args, **kw), tpus=chips)
    accelerators.lack_of_tensorflow = lambda device: None


ChangedModules({"strategies.tf_bridge.tpu": on_cpus, "harness.provision.accelerators": with_chips}).install()
