"""Lowered host loops run on this host's devices: programs for them, and what a few runs leave behind."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from host_loop_graphs import FLOAT, RESOURCE, HostLoopGraph

from strategies.ir.graph import Function, Graph, Shape, producer
from strategies.ir.graph_rules import verify
from strategies.numerics.resharding import COUNTS, GAUGES
from strategies.passes.tpu.computations import Member
from strategies.passes.tpu.emulate_cores import counts_name, lower_computations
from strategies.passes.tpu.host_loop_reshard import reshard_host_loops
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.function_bodies import function_of
from strategies.tf_bridge.graphdef import serialize_graph
from strategies.tf_bridge.snippet import TensorSpec, trace

v1 = tf.compat.v1
Values = Mapping[str, np.ndarray]


def device(replica: int) -> str:
    """Place of a replica."""
    return f"/job:localhost/replica:0/task:0/device:CPU:{replica}"


def members(n: int) -> dict[int, Member]:
    """All replicas, on devices of this host."""
    order = tuple(range(n))
    return {r: Member(place=r, order=order, group=(n, 1), device=device(r), host=device(0)) for r in order}


def core_program(
    step: Callable[..., tuple[tf.Tensor, Sequence[tf.Operation]]],
    n_arguments: int,
    *,
    name: str = "step",
    **static: object,
) -> Function:
    """A computation of a TensorFlow function.

    Args:
        step: function of the variables' handles; returns a loss and the operations that must have run.
        static: further arguments of the step.
    """
    specs = (TensorSpec(dtype=RESOURCE, shape=Shape(())),) * n_arguments
    snippet = trace(step, specs, **static)  # type: ignore[arg-type]
    loss, *waits = snippet.outputs
    return function_of(
        name,
        snippet.nodes,
        inputs=dict.fromkeys(snippet.inputs, RESOURCE),
        results={"loss": (loss, FLOAT)},
        waits=map(producer, waits),
        library={},
    )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Results of runs.

    Attributes:
        results: fetched values of each run.
        variables: values after each run, by handle.
        counts: computation → counts of each replica, by name.
    """

    results: list[list[float]]
    variables: list[dict[str, np.ndarray]]
    counts: dict[str, list[dict[str, int]]]

    def error(self, other: "Outcome") -> float:
        """The greatest difference between two outcomes, of what it is a difference of."""
        errors = [0.0]
        for mine, theirs in zip(self.variables, other.variables, strict=True):
            assert {n: v.shape for n, v in mine.items()} == {n: v.shape for n, v in theirs.items()}
            errors += [_difference(mine[name], theirs[name]) for name in mine]
        for results, others in zip(self.results, other.results, strict=True):
            errors += [_difference(one, two) for one, two in zip(results, others, strict=True)]
        return max(errors)


def _difference(one: np.ndarray | float, other: np.ndarray | float) -> float:
    """The greatest difference of values, to the greatest of them."""
    scale = float(np.abs(one).max(initial=0))
    return float(np.abs(np.subtract(one, other)).max(initial=0)) / (scale or 1.0)


def run(
    graph: Graph,
    values: Values,
    *,
    n_replicas: int,
    n_runs: int = 2,
    fetches: Sequence[str] = ("loop/count", "loop/total"),
    labels: Sequence[str] = (),
    probe: Callable[[Graph], Graph] = lambda graph: graph,
) -> Outcome:
    """Lower a graph and run its loops.

    Args:
        values: handle → value of its variable before the first run.
        labels: labels of computations whose resharding is counted.
        probe: transformation of the lowered graph before it runs.
    """
    probed = probe(lower_computations(graph, members(n_replicas)))
    verify(probed)
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(v1.GraphDef.FromString(serialize_graph(probed)), name="")
        begin, read, fed = [], {}, {}
        for name, value in values.items():
            with tf.device(graph.by_name[name].device):
                handle = imported.get_tensor_by_name(f"{name}:0")
                placeholder = v1.placeholder(value.dtype, value.shape)
                fed[placeholder] = value
                begin.append(tf.raw_ops.AssignVariableOp(resource=handle, value=placeholder))
                read[name] = tf.raw_ops.ReadVariableOp(resource=handle, dtype=value.dtype)
        counts = {label: [_counts(label, r) for r in range(n_replicas)] for label in labels}
        config = v1.ConfigProto(device_count={"CPU": n_replicas})
        # TensorFlow looks for collectives among the nodes of a graph, and not in functions.
        options = v1.RunOptions(experimental=v1.RunOptions.Experimental(collective_graph_key=1))
        results, variables = [], []
        with v1.Session(config=config) as session:
            session.run(begin, fed)
            for _ in range(n_runs):
                results.append(session.run([f"{name}:0" for name in fetches], options=options))
                variables.append(session.run(read))
            counted = session.run(counts)
    names = (*COUNTS, *GAUGES)
    return Outcome(
        results=results,
        variables=variables,
        counts={
            label: [dict(zip(names, map(int, digits), strict=True)) for digits in own]
            for label, own in counted.items()
        },
    )


def _counts(label: str, replica: int) -> tf.Tensor:
    with tf.device(device(0)):
        shape = (len(COUNTS) + len(GAUGES),)
        handle = tf.raw_ops.VarHandleOp(
            dtype=tf.int64, shape=shape, shared_name=counts_name(label, replica), container=""
        )
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64)


def both(graph: Graph, values: Values, **options: object) -> tuple[Outcome, Outcome]:
    """Behaviour of a graph as it is, and of the same graph with resharded variables."""
    labels = options.pop("labels", ())
    resharded = reshard_host_loops(graph)
    assert resharded.graph is not graph
    whole = run(graph, values, **options)  # type: ignore[arg-type]
    return whole, run(resharded.graph, values, labels=labels, **options)  # type: ignore[arg-type]


def first_values(loop: HostLoopGraph, *, seed: int = 0, ones: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Values of a loop's variables: slots begin with zeros or ones, weights are alike on all replicas."""
    rng = np.random.default_rng(seed)
    values = {}
    for v in loop.variables:
        dtype = tf.as_dtype(dtype_number(v.dtype)).as_numpy_dtype
        alike = rng.normal(size=v.shape)
        for replica in range(1 if v.shared else loop.n_replicas):
            name = v.name if v.shared else f"{v.name}_{replica}"
            value = np.ones(v.shape) if v.name in ones else np.zeros(v.shape)
            if v.name[0] in "wb":
                value = alike
            elif v.name[0] == "x":
                value = rng.normal(size=v.shape)
            values[name] = value.astype(dtype)
    return values
