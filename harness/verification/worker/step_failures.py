"""Failures of the captured step itself: the user's line, and whether only shards of a batch fail."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import tensorflow as tf

from harness.errors import UsageError
from harness.verification.worker.rounding import PLAIN
from harness.verification.worker.shard_steps import ShardSteps, StateShapeError
from harness.worker.session.capture_store import InitialValues, load_lines, load_step
from harness.worker.variable_parts import Array
from strategies.ir.graph import Graph, producer
from strategies.ir.train_graph import TrainGraph
from strategies.topology import Topology
from strategies.user_errors import failed_node, graph_error

_GRADIENT_SCOPES = ("gradient_tape", "gradients")
_PASSING = frozenset({"Identity", "Cast", "ReadVariableOp", "ResourceGather"})


@contextmanager
def naming_users_line(
    capture: Path, topology: Topology, read_batches: Callable[[], Sequence[Sequence[Array]]]
) -> Iterator[None]:
    """Turn a failure caused by the captured step into one line that names the user's line.

    The failing node is found by running the step, in its own types and on one device, on each shard.

    Args:
        read_batches: returns global batches, in the step's own types.
    Raises:
        UsageError: the step fails on a shard, or on any batch.
    """
    try:
        yield
    except (tf.errors.InvalidArgumentError, StateShapeError) as error:
        step, initial, lines = load_step(capture), InitialValues(capture), load_lines(capture)
        for batch in read_batches():
            failure = _failure(step, initial, topology, batch)
            if failure is None:
                continue
            alone = replace(topology, replicas_per_task=(1,), micro_batches=1)
            is_of_shards = topology.n_shards > 1 and _failure(step, initial, alone, batch) is None
            reason = _Wording(step, lines, len(batch[0])).of(failure)
            if is_of_shards:
                raise UsageError(
                    f"must take a shard of a batch of {len(batch[0])} examples, got {reason}, and takes all "
                    "of them; take sizes from tf.shape(x)[0], leave the batch axis None, or use one worker "
                    "with one replica",
                    field="train_step",
                ) from error
            raise UsageError(f"must run on a batch, got {reason}", field="train_step") from error
        raise


def _failure(
    step: TrainGraph, initial: InitialValues, topology: Topology, batch: Sequence[Array]
) -> Exception | None:
    try:
        with ShardSteps(step, initial, topology) as shards:
            shards.begin(PLAIN)
            # First without gradients: their operations on shapes could fail before the forward pass does.
            shards.values(batch, [step.losses[0].tensor])
            shards.crossing(batch)
    except (tf.errors.InvalidArgumentError, StateShapeError) as error:
        return error
    return None


class _Wording:
    def __init__(self, step: TrainGraph, lines: Mapping[str, str], n_examples: int) -> None:
        self._step = step
        self._lines = lines
        self._n_examples = n_examples

    def of(self, failure: Exception) -> str:
        if isinstance(failure, StateShapeError):
            return f"{failure}{self._place(failure.node)}"
        message = getattr(failure, "message", str(failure))
        function, failed = failed_node(message)
        if not failed:
            return graph_error(message)
        reason = graph_error(message).removesuffix(f", at node {failed}")
        if function:
            # Passes append to a function's name.
            known = (key for key in self._lines if key.endswith(f"/{failed}"))
            key = next((key for key in known if function.startswith(key.removesuffix(f"/{failed}"))), "")
            return f"{reason} at {failed!r}{self._place(key)}"
        node = forward_node(self._step.graph, failed)
        return f"{reason} at {node!r}{self._variable(node)}{self._place(node)}"

    def _place(self, node: str) -> str:
        line = self._lines.get(node)
        return f" ({line})" if line else ""

    def _variable(self, name: str) -> str:
        """Variable that a node reads and whose first axis has the length of a batch."""
        by_name = self._step.graph.by_name
        reached, handles = [name], set()
        while reached:
            node = by_name.get(reached.pop())
            if node is None:
                continue
            handles.add(node.name)
            if node.name == name or node.op in _PASSING:
                reached.extend(producer(ref) for ref in node.data_inputs)
        for v in self._step.variables:
            if v.handle in handles and v.shape.dims and v.shape.dims[0] == self._n_examples:
                return f" with variable {v.name!r} of shape {list(v.shape.dims)}"
        return ""


def forward_node(graph: Graph, name: str) -> str:
    """Node of the forward pass from which a node of the backward pass, or of a loop's body, was derived.

    Args:
        name: name of a node of the graph, or of one that TensorFlow derived from it.
    """
    scopes = name.split("/")
    if scopes[0].rstrip("_0123456789") in _GRADIENT_SCOPES:
        scopes = [scope.removesuffix("_grad") for scope in scopes[1:]]
    elif name in graph.by_name:
        return name
    begun = ("/".join(scopes[:length]) for length in range(len(scopes), 0, -1))
    return next((candidate for candidate in begun if candidate in graph.by_name), name)
