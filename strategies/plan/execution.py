"""Parameters of a plan that passes and runs read: synchronisation, micro-batches, loops."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from strategies.topology import Topology

PARAMETERS = {
    "accumulate": "micro_batches",
    "sync_batch_norm": "global_statistics",
    "sync": "sync",
    "staleness": "staleness",
    "backup": "backup",
    "period": "period",
    "fused_update": "fused_update",
    "merge_rows": "merges_rows",
    "steps_per_loop": "steps_per_loop",
    "device_loop": "loops_on_device",
}
"""Name of a parameter in the registry → field that it sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Parameters of a plan that passes, references and runs need; defaults for a strategy without them.

    Attributes:
        micro_batches: number of micro-batches that a replica processes per step.
        global_statistics: True if BatchNormalization uses statistics of the whole batch.
        sync: True if an update waits for the other workers' contributions.
        staleness: maximum number of steps that a worker may be ahead of the slowest.
        backup: number of workers that an update does not wait for.
        period: number of steps between two averages of the variables.
        steps_per_loop: maximum number of steps per run of a loop.
        loops_on_device: True if replicas run that loop themselves instead of the host.
        fused_update: True if small optimizer operations are replaced by TensorFlow's fused kernels.
        merges_rows: True if rows of a sparse gradient with equal ids are summed before the update.
    """

    micro_batches: int = 1
    global_statistics: bool = False
    sync: bool = True
    staleness: int = 0
    backup: int = 0
    period: int = 1
    steps_per_loop: int = 1
    loops_on_device: bool = False
    fused_update: bool = False
    merges_rows: bool = False

    @classmethod
    def of(cls, params: Mapping[str, bool | int | float | str | None]) -> "Execution":
        """Read parameters by their names in the registry.

        None and text values are ignored: a user's builder may use the same name for something else.
        """
        usual = cls()
        values = {field: params.get(name) for name, field in PARAMETERS.items()}
        # Booleans and counts, with the field's type.
        changes = {
            field: type(getattr(usual, field))(value)
            for field, value in values.items()
            if isinstance(value, int | float)
        }
        return replace(usual, **changes)

    @property
    def cycle(self) -> int:
        """Number of steps after which every periodic action has happened equally often."""
        return math.lcm(self.period, self.steps_per_loop)

    @property
    def waits_for_all(self) -> bool:
        return self.sync and not self.staleness and not self.backup


def requested_topology(topology: Topology, params: Mapping[str, bool | int | float | str | None]) -> Topology:
    """Topology with the micro-batches, statistics and merging of rows that these parameters request."""
    steps = Execution.of(params)
    return replace(
        topology,
        micro_batches=steps.micro_batches,
        global_statistics=topology.n_replicas > 1 and steps.global_statistics,
        merges_rows=steps.merges_rows,
    )
