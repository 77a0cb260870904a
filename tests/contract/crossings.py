"""Tensors that cross between tasks in a step, counted in the graphs that TensorFlow really runs."""

from collections.abc import Iterator
from dataclasses import dataclass

import tensorflow as tf
from cases import Case

from harness.verification.worker.in_process import InProcessCluster, programs_of
from harness.worker.session.session import WorkerSession
from harness.worker.session.tensorflow_settings import Use, session_config
from strategies.plan.schema import Plan
from strategies.program import ref

FLOAT_BYTES = 4  # as plans count; the check itself runs in float64


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """A tensor that one task sends to another.

    Attributes:
        source: node that makes it. variables: variables that it is read from, alone or joined with others.
        n_bytes: None if its shape is unknown in advance.
    """

    sender: int
    receiver: int
    source: str
    variables: tuple[str, ...]
    n_bytes: int | None


def crossings(case: Case, plan: Plan) -> list[Crossing]:
    """Everything that all workers' first step sends across tasks, but for the insides of collectives."""
    first = case.batches[0]

    def of_worker(session: WorkerSession) -> list[Crossing]:
        program, graph = session.program, tf.Graph()
        with graph.as_default():
            tf.graph_util.import_graph_def(session._graph_def, name="")
        feed = {
            ref(b.node): v[program.start : program.stop]
            for b, v in zip(program.step.batch, first, strict=True)
        }
        metadata = tf.compat.v1.RunMetadata()
        config = session_config(program, Use.FEW_STEPS, session._target)
        with tf.compat.v1.Session(session._target, graph=graph, config=config) as observed:
            observed.run(
                [graph.get_operation_by_name(name) for name in program.targets],
                feed,
                options=tf.compat.v1.RunOptions(output_partition_graphs=True),
                run_metadata=metadata,
            )
        return [
            c for partition_graph in metadata.partition_graphs for c in _between_tasks(partition_graph, graph)
        ]

    with InProcessCluster(programs_of(case.step, plan), case.initial) as cluster:
        return [crossing for result in cluster.each(of_worker) for crossing in result]


def _between_tasks(partition: tf.compat.v1.GraphDef, graph: tf.Graph) -> Iterator[Crossing]:
    """Tensors that one device's part of a graph sends to other tasks' devices."""
    by_name = {node.name: node for node in partition.node}
    for node in partition.node:
        if node.op not in ("_Send", "_HostSend"):
            continue
        sender, receiver = (_task(node.attr[key].s.decode()) for key in ("send_device", "recv_device"))
        source, _, index = node.input[0].partition(":")
        if sender == receiver or _says_only_that_it_ran(by_name[source]):
            continue
        # The program must have it: only of a loop in pieces would TensorFlow send nodes of its own making.
        operation = graph.get_operation_by_name(source)
        yield Crossing(
            sender=sender,
            receiver=receiver,
            source=source,
            variables=tuple(_read_from(operation)),
            n_bytes=_float_bytes(operation.outputs[int(index or 0)]),
        )


def _read_from(result: tf.Operation) -> Iterator[str]:
    if result.type == "ReadVariableOp":
        yield result.inputs[0].op.name
    elif result.type in ("Reshape", "ConcatV2"):
        for part in result.inputs:
            yield from _read_from(part.op)


def _says_only_that_it_ran(node: tf.compat.v1.NodeDef) -> bool:
    """An empty constant goes where a node waits for one on another device."""
    return node.op == "Const" and tf.TensorShape(node.attr["value"].tensor.tensor_shape).num_elements() == 0


def _task(device: str) -> int:
    return int(tf.DeviceSpec.from_string(device).task)


def _float_bytes(tensor: tf.Tensor) -> int | None:
    """Bytes of values; counters and tokens have none."""
    if not tensor.dtype.is_floating:
        return 0
    return None if tensor.shape.num_elements() is None else FLOAT_BYTES * tensor.shape.num_elements()
