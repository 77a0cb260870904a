"""Steps by replicas that XLA compiles, in a process of their own: CPUs in the place of TPU devices.

A process has as many CPUs as it was told before it used any.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from harness.worker.jobs.distributed.variable_copies import DistributedCopies
from harness.worker.session.capture_store import InitialValues
from strategies.compile import compile_replica
from strategies.ir.train_graph import TrainGraph
from strategies.plan.schema import Plan
from strategies.planner import topology_of
from strategies.program import ReplicaProgram
from strategies.tf_bridge import tpu
from strategies.tf_bridge.tpu import CompiledReplicas, replicated_variables

MOST_REPLICAS = 4
_SUMS = tpu.sum_over_replicas


def begin() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    one = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(cpu, [one] * MOST_REPLICAS)


def drop_sums() -> None:
    tpu.sum_over_replicas = lambda contributed: contributed


def restore_sums() -> None:
    tpu.sum_over_replicas = _SUMS


def mirrored(n_replicas: int) -> tf.distribute.Strategy:
    # Collectives of several strategies in a process have the same keys.
    devices = [f"/cpu:{k}" for k in range(n_replicas)]
    return tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())


def trained(
    step: TrainGraph, folder: Path, plan: Plan, batches: Sequence[Sequence[Any]], n_steps: int
) -> tuple[dict[tuple[str, int | None], Any], list[float]]:
    """Values of all copies after a step on each batch, some in one run, and the global loss of each step."""
    program, topology = compile_replica(step, plan), topology_of(plan)
    values, losses = _run(program, mirrored(topology.n_replicas), step, folder, plan, batches, n_steps)
    return values, (losses.sum(axis=1) * program.weight).tolist()


def trained_alone(
    step: TrainGraph, folder: Path, plan: Plan, batches: Sequence[Sequence[Any]], *, on_device: bool
) -> tuple[dict[tuple[str, int | None], Any], list[float]]:
    """Result of the first replica alone, as if others added nothing, all steps in one run."""
    alone = tf.distribute.OneDeviceStrategy("/cpu:0")
    values, losses = _run(
        compile_replica(step, plan), alone, step, folder, plan, batches, len(batches), on_device=on_device
    )
    return values, losses[:, 0].tolist()


def _run(
    program: ReplicaProgram,
    distribution: tf.distribute.Strategy,
    step: TrainGraph,
    folder: Path,
    plan: Plan,
    batches: Sequence[Sequence[Any]],
    n_steps: int,
    *,
    on_device: bool = False,
) -> tuple[dict[tuple[str, int | None], Any], Any]:
    initial = InitialValues(folder, float64=True)
    local = topology_of(plan).replicas()[: distribution.num_replicas_in_sync]
    values = {v.name: initial.value(v.name) for v in step.variables}
    variables = replicated_variables(distribution, step.variables, values)
    replicas = CompiledReplicas(program, distribution, variables, local, loops_on_device=on_device)
    placed = [replicas.placed(batch) for batch in batches]
    replicas.compile(placed[:n_steps])
    copies = DistributedCopies(
        distribution, step.variables, variables, initial, ranks=[r.rank for r in local]
    )
    copies.load()
    losses = [replicas(placed[first : first + n_steps]) for first in range(0, len(placed), n_steps)]
    final_values = {copy: value for name in copies.captured for copy, value in copies.values(name).items()}
    return final_values, np.concatenate(losses)
