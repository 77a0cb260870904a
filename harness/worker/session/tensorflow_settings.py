"""Settings of workers' TensorFlow servers and sessions: devices, threads, optimizers."""

import os
from collections.abc import Sequence
from enum import Enum

import tensorflow as tf
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

from harness.worker.process.tensorflow_gpus import logical_devices
from strategies.program import Program
from strategies.topology import task_device

v1 = tf.compat.v1

OWN_DEVICES = ""
"""Target of a session with its own devices, whose steps avoid the overhead of a server."""


def start_server(
    task: int, addresses: Sequence[str], n_devices: int = 1, *, n_inter_op: int = 0
) -> tf.distribute.Server:
    """Start a TensorFlow server of the job `worker`; it ends with its process.

    Args:
        addresses: `host:port` of every task.
        n_devices: number of logical CPU devices.
        n_inter_op: threads shared by all servers of a process, set by the first; 0 takes one per core.
    """
    config = _with_devices(v1.ConfigProto(inter_op_parallelism_threads=n_inter_op), n_devices)
    # The server resolves collectives with its own setting; with only the session's, every member waits.
    config.experimental.collective_group_leader = task_device(0)
    cluster = tf.train.ClusterSpec({"worker": list(addresses)})
    return tf.distribute.Server(cluster, job_name="worker", task_index=task, config=config)


def n_threads_for_waits(n_waiting: int) -> int:
    """Number of threads for operations if some of them block while waiting: those, and one per core."""
    return len(os.sched_getaffinity(0)) + n_waiting


def _with_devices(config: tf.compat.v1.ConfigProto, n_devices: int) -> tf.compat.v1.ConfigProto:
    config.device_count["CPU"] = n_devices
    config.gpu_options.allow_growth = True
    for parts in logical_devices().values():
        limits_mib = [part.memory_limit for part in parts]
        config.gpu_options.experimental.virtual_devices.add(memory_limit_mb=limits_mib)
    return config


class Use(Enum):
    """Purpose of a session, which decides how far TensorFlow optimizes; the arithmetic is the same.

    Attributes:
        MANY_STEPS: timed steps: all optimizers.
        FEW_STEPS: steps of a check: one round of optimizers, without searches for memory and layout.
        AS_WRITTEN: steps of a check with exactly the operations of the graph: no optimizer.
        PARTS_OF_STEPS: arbitrary `run`s; no step is prepared, and unused reads stay.
    """

    MANY_STEPS = "many steps"
    FEW_STEPS = "few steps"
    AS_WRITTEN = "as written"
    PARTS_OF_STEPS = "parts of steps"


def session_config(program: Program, use: Use, target: str) -> tf.compat.v1.ConfigProto:
    """Devices and optimizers of a session.

    Args:
        target: address of a worker's server, whose devices it uses, or `OWN_DEVICES`.
    """
    config = v1.ConfigProto(allow_soft_placement=True)
    if target == OWN_DEVICES:
        _with_devices(config, program.n_devices)
        # If only gradients are waited for, everything was sent, and nothing else needs the thread.
        if program.n_waiting > 1:
            config.use_per_session_threads = True
            config.inter_op_parallelism_threads = n_threads_for_waits(program.n_waiting)
    else:
        config.device_filters.extend(program.device_filters)
    rewrites = config.graph_options.rewrite_options
    if use is not Use.MANY_STEPS:
        # A second pass, and searches for memory and layout, cost more than a few steps.
        rewrites.meta_optimizer_iterations = RewriterConfig.ONE
        rewrites.memory_optimization = RewriterConfig.NO_MEM_OPT
        rewrites.layout_optimizer = RewriterConfig.OFF
    if use is Use.AS_WRITTEN:
        rewrites.disable_meta_optimizer = True
    if program.step.steps_per_run is not None:
        # Whole programs are functions that a loop calls; inlining some thousand nodes there takes minutes.
        # With only that, other optimizers leave a branch in a loop with handles from outside the loop.
        rewrites.disable_meta_optimizer = True
    if use is Use.PARTS_OF_STEPS:
        # A run of a part of the step has unused reads. TensorFlow's dependency optimizer drops them, and
        # with them the assignments that only they wait for.
        rewrites.dependency_optimization = RewriterConfig.OFF
    if program.group_leader is not None:
        config.experimental.collective_group_leader = program.group_leader
    return config


def listed_devices(program: Program, target: str) -> list[str]:
    """Names of all devices of a program's session."""
    config = session_config(program, Use.PARTS_OF_STEPS, target)
    with v1.Session(target, graph=tf.Graph(), config=config) as session:
        return [device.name for device in session.list_devices()]
