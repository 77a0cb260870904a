"""A worker's steps in the way that TensorFlow can trace, which takes longer than the prepared one."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import tensorflow as tf

from harness.equivalence.yardstick import Array
from harness.worker.transport.exchange import Moved
from strategies.program import Program, ref

v1 = tf.compat.v1


class StepTracer:
    """Runs what a program's step runs, and what runs beside it, in a session that shares all variables.

    As a context manager it ends that session.

    Attributes:
        seen: what TensorFlow tells of each run since `begin`; of a step and what runs beside it, both.
        moved: takes what the workers' own transport moves.
    Args:
        graph_def: the program's, bound to functions of this process.
        target: of the worker's server. config: of its session.
    """

    def __init__(
        self,
        graph_def: tf.compat.v1.GraphDef,
        target: str,
        config: tf.compat.v1.ConfigProto,
        program: Program,
    ) -> None:
        graph = tf.Graph()
        with graph.as_default():
            tf.graph_util.import_graph_def(graph_def, name="")
        # A prepared call is traced by the servers, and what they saw is dropped.
        self._session = v1.Session(target, graph=graph, config=config)
        fetched = [*(loss.tensor for loss in program.losses), *filter(None, [program.progress])]
        self._step: list[list[Any]] = [
            [graph.get_tensor_by_name(ref(name)) for name in fetched],
            [graph.get_operation_by_name(name) for name in program.targets],
        ]
        self._placeholders = [graph.get_tensor_by_name(ref(b.node)) for b in program.batch]
        self._beside = [[], [graph.get_operation_by_name(name) for name in program.background]]
        self._options: tf.compat.v1.RunOptions | None = None
        self.seen: list[tf.compat.v1.RunMetadata] = []
        self.moved: list[Moved] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session, and what waits in it."""
        self._session.close()

    def begin(self, options: tf.compat.v1.RunOptions | None = None) -> None:
        """Trace from now on; no step may be in flight.

        Args:
            options: what TensorFlow is to tell; None asks for all that it knows of time.
        """
        self._options = options or v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
        self.moved.clear()

    def step(self, *feeds: Array) -> Sequence[Array]:
        """Run a step; see `WorkerSession.step`."""
        return self._run(self._step, dict(zip(self._placeholders, feeds, strict=True)))

    def beside(self) -> None:
        """Run what runs once beside each step."""
        self._run(self._beside, {})

    def _run(self, fetches: Sequence[Sequence[Any]], feed: Mapping[Any, Array]) -> Sequence[Array]:
        metadata = None if self._options is None else v1.RunMetadata()
        fetched = self._session.run(fetches, feed, options=self._options, run_metadata=metadata)
        if metadata is not None:
            self.seen.append(metadata)
        return fetched[0]  # type: ignore[no-any-return]
