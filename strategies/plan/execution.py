"""Execution of plans' steps, as far as parameters say: who waits for whom, in how many turns."""

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
"""A parameter's name in the registry → the field that it sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What passes, references and runs must know of a plan's parameters.

    A strategy that does not take a parameter goes as the field's default says.

    Attributes:
        micro_batches: turns in which a replica takes its examples.
        global_statistics: BatchNormalization sees the whole batch.
        sync: updates wait for contributions of other workers; without, each worker makes its own.
        staleness: steps that a worker may be ahead of the slowest.
        backup: workers that an update does not wait for.
        period: steps from one averaging of variables to the next.
        steps_per_loop: most steps that a loop makes in one run.
        loops_on_device: replicas make that loop by themselves, not the host.
        fused_update: optimizers' small operations become TensorFlow's kernels where there is one.
        merges_rows: rows of sparse gradients that have the same id are summed before the update.
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
        """What a strategy's parameters ask for, by their names in the registry.

        None asks for nothing, and neither do words: a user's builder may mean something else by a name.
        """
        usual = cls()
        given = {field: params.get(name) for name, field in PARAMETERS.items()}
        # Truth values and counts, as the field has them.
        asked = {
            field: type(getattr(usual, field))(value)
            for field, value in given.items()
            if isinstance(value, int | float)
        }
        return replace(usual, **asked)

    @property
    def cycle(self) -> int:
        """Steps after which all that is not done in every step has been done as often as ever."""
        return math.lcm(self.period, self.steps_per_loop)

    @property
    def waits_for_all(self) -> bool:
        """Whether an update waits for what every worker contributes."""
        return self.sync and not self.staleness and not self.backup


def asked_of(topology: Topology, params: Mapping[str, bool | int | float | str | None]) -> Topology:
    """A topology whose replicas take their examples as a strategy with these parameters has them."""
    steps = Execution.of(params)
    return replace(
        topology,
        micro_batches=steps.micro_batches,
        global_statistics=topology.n_replicas > 1 and steps.global_statistics,
        merges_rows=steps.merges_rows,
    )
