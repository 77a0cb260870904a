"""Steps by replicas that XLA compiles, in a process of their own: CPUs in the place of TPU devices.

Functions of a capture would be in the way where they were traced: replicas bring theirs by the same names.
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
from strategies.planning.plan import topology_of
from strategies.tf_bridge.tpu import compiled_replicas
from strategies.tf_bridge.tpu.compiled_replicas import CompiledReplicas, replicated_variables

MOST_REPLICAS = 4
_SUMS = compiled_replicas.sum_over_replicas


def begin() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    one = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(cpu, [one] * MOST_REPLICAS)


def drop_sums() -> None:
    compiled_replicas.sum_over_replicas = lambda contributed: contributed


def restore_sums() -> None:
    compiled_replicas.sum_over_replicas = _SUMS


def trained(
    step: TrainGraph, folder: Path, plan: Plan, batches: Sequence[Sequence[Any]], n_steps: int
) -> tuple[dict[tuple[str, int | None], Any], list[float]]:
    """Values of all copies after a step on each batch, some in one run, and the global loss of each step."""
    topology, initial = topology_of(plan), InitialValues(folder, float64=True)
    # Collectives of several strategies in a process have the same keys.
    distribution = tf.distribute.MirroredStrategy(
        [f"/cpu:{k}" for k in range(topology.n_replicas)], tf.distribute.ReductionToOneDevice()
    )
    program = compile_replica(step, plan)
    values = {v.name: initial.value(v.name) for v in step.variables}
    variables = replicated_variables(distribution, step.variables, values)
    replicas = CompiledReplicas(program, distribution, variables, topology.replicas(), loops_on_device=False)
    stacked = [np.stack(parts) for parts in zip(*batches, strict=True)]
    replicas.compile([part[:n_steps] for part in stacked])
    copies = DistributedCopies(distribution, step.variables, variables, initial, topology.replicas())
    copies.load()
    losses = [
        replicas([part[first : first + n_steps] for part in stacked])
        for first in range(0, len(batches), n_steps)
    ]
    values = {copy: value for name in copies.captured for copy, value in copies.values(name).items()}
    return values, (np.concatenate(losses).sum(axis=1) * program.weight).tolist()
