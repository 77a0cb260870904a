"""A worker's steps in the way that TensorFlow can trace, which takes longer than the prepared one."""

from collections.abc import Sequence
from typing import Protocol, Self

import tensorflow as tf

from harness.equivalence.yardstick import Array
from harness.worker.transport.exchange import Moved
from strategies.program import Program

v1 = tf.compat.v1


class TracedRuns(Protocol):
    """Runs parts of a program on its variables, and tells what TensorFlow saw."""

    def run(
        self,
        fetches: Sequence[str],
        targets: Sequence[str],
        feeds: Sequence[Array],
        options: tf.compat.v1.RunOptions,
    ) -> tuple[Sequence[Array], tf.compat.v1.RunMetadata]:
        """Fetch tensors and run nodes, on a batch or on nothing.

        Args:
            options: what TensorFlow is to tell.
        """

    def close(self) -> None:
        """End what was opened for it, and what waits there."""


class StepTracer:
    """Runs what a program's step runs, and what runs beside it.

    As a context manager it ends what was opened for its runs.

    Attributes:
        seen: what TensorFlow tells of each run since `begin`; of a step and what runs beside it, both.
        moved: takes what the workers' own transport moves.
    """

    def __init__(self, program: Program, runs: TracedRuns) -> None:
        self._program = program
        self._runs = runs
        self._fetches = [*(loss.tensor for loss in program.losses), *filter(None, [program.progress])]
        self._options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
        self._tracing = False
        self.seen: list[tf.compat.v1.RunMetadata] = []
        self.moved: list[Moved] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End its runs, and what waits in them."""
        self._runs.close()

    def begin(self, options: tf.compat.v1.RunOptions | None = None) -> None:
        """Keep what is seen from now on; no step may be in flight.

        Args:
            options: what TensorFlow is to tell; None asks for all that it knows of time.
        """
        self._tracing = True
        self._options = options or self._options
        self.moved.clear()

    def step(self, *feeds: Array) -> Sequence[Array]:
        """Run a step; see `WorkerSession.step`."""
        return self._run(self._fetches, self._program.targets, feeds)

    def beside(self) -> None:
        """Run what runs once beside each step."""
        self._run((), self._program.background, ())

    def _run(self, fetches: Sequence[str], targets: Sequence[str], feeds: Sequence[Array]) -> Sequence[Array]:
        values, metadata = self._runs.run(fetches, targets, feeds, self._options)
        if self._tracing:
            self.seen.append(metadata)
        return values
