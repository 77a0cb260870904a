"""Traced steps of a session: operations with times, bytes and peers."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Protocol, Self, TypeVar

import tensorflow as tf

from harness.worker.session.named_session import NamedSession, Traced
from harness.worker.transport.exchange import Moved
from harness.worker.variable_parts import Array
from strategies.program import Program, ref
from strategies.topology import task_device

v1 = tf.compat.v1
_OWN = "/job:localhost/replica:0/task:0"


class RunsOnServer:
    """Traced runs in a second session on the worker's server, whose variables it shares.

    Servers trace prepared calls and drop the result.

    Args:
        fed: names of the tensors that are fed.
        graph_def: graph of the program, with functions of this process bound.
        target: address of the worker's server. config: settings of the session.
    """

    def __init__(
        self,
        fed: Sequence[str],
        graph_def: tf.compat.v1.GraphDef,
        target: str,
        config: tf.compat.v1.ConfigProto,
    ) -> None:
        self._fed = list(map(ref, fed))
        self._graph = tf.Graph()
        with self._graph.as_default():
            tf.graph_util.import_graph_def(graph_def, name="")
        self._session = v1.Session(target, graph=self._graph, config=config)

    def run(
        self,
        fetches: Sequence[str],
        targets: Sequence[str],
        feeds: Sequence[Array],
        options: tf.compat.v1.RunOptions,
    ) -> tuple[Sequence[Array], tf.compat.v1.RunMetadata]:
        named = [[ref(name) for name in fetches], [self._graph.get_operation_by_name(t) for t in targets]]
        fed = dict(zip(self._fed, feeds, strict=True)) if feeds else {}
        metadata = v1.RunMetadata()
        return self._session.run(named, fed, options=options, run_metadata=metadata)[0], metadata

    def close(self) -> None:
        self._session.close()


class RunsInSession:
    """Traced runs in the program's own session, if only that has the program's variables.

    Args:
        fed: see `RunsOnServer`.
    """

    def __init__(self, session: NamedSession, fed: Sequence[str], task: int) -> None:
        self._session = session
        self._fed = tuple(fed)
        self._task = task
        # A newly prepared run has its graph built, and compiled, anew.
        self._prepared: dict[Hashable, Traced] = {}

    def run(
        self,
        fetches: Sequence[str],
        targets: Sequence[str],
        feeds: Sequence[Array],
        options: tf.compat.v1.RunOptions,
    ) -> tuple[Sequence[Array], tf.compat.v1.RunMetadata]:
        fed = self._fed if feeds else ()
        key = fed, tuple(fetches), tuple(targets), options.SerializeToString()
        if key not in self._prepared:
            self._prepared[key] = self._session.traced(fed, fetches, targets, options)
        values, metadata = self._prepared[key](*feeds)
        for device in metadata.step_stats.dev_stats:
            # Offset of the clock, as measured by the workers.
            device.device = device.device.replace(_OWN, task_device(self._task))
        return values, metadata

    def close(self) -> None:
        """Do nothing: the session belongs to the caller."""


class TracedRuns(Protocol):
    """Runner of parts of a program that returns TensorFlow's metadata."""

    def run(
        self,
        fetches: Sequence[str],
        targets: Sequence[str],
        feeds: Sequence[Array],
        options: tf.compat.v1.RunOptions,
    ) -> tuple[Sequence[Array], tf.compat.v1.RunMetadata]:
        """Fetch tensors and run nodes, on a batch or on nothing.

        Args:
            options: options of TensorFlow's tracing.
        """

    def close(self) -> None:
        """Close the resources of the runs."""


class StepTracer:
    """Runs a program's step and its background runs with tracing; a context manager that closes its runs.

    Attributes:
        seen: metadata of each run since `begin`, of the step and of background runs.
        moved: collects transfers of the workers' own transport.
    """

    def __init__(self, program: Program, runs: TracedRuns) -> None:
        self._program = program
        self._runs = runs
        self._fetches = [
            *(loss.tensor for loss in program.step.losses),
            *filter(None, [program.step.progress]),
        ]
        self._options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
        self._tracing = False
        self.seen: list[tf.compat.v1.RunMetadata] = []
        self.moved: list[Moved] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._runs.close()

    def begin(self, options: tf.compat.v1.RunOptions | None = None) -> None:
        """Record from now on; no step may be in flight.

        Args:
            options: options of TensorFlow's tracing; None for all times.
        """
        self._tracing = True
        self._options = options or self._options
        self.moved.clear()

    def step(self, *feeds: Array) -> Sequence[Array]:
        return self._run(self._fetches, self._program.targets, feeds)

    def beside(self) -> None:
        self._run((), self._program.step.background, ())

    def _run(self, fetches: Sequence[str], targets: Sequence[str], feeds: Sequence[Array]) -> Sequence[Array]:
        values, metadata = self._runs.run(fetches, targets, feeds, self._options)
        if self._tracing:
            self.seen.append(metadata)
        return values


Item = TypeVar("Item")

# A message between servers is limited to 2 GB, and data in transit is in memory twice.
RUN_BYTES = 256 << 20


def byte_groups(
    items: Iterable[Item], n_bytes: Callable[[Item], int], *, limit: int = RUN_BYTES
) -> Iterator[list[Item]]:
    """Items in order, in groups of at most `limit` bytes; a larger item is a group by itself.

    Items are read when their group is needed, so that only one group is in memory at a time.
    """
    group: list[Item] = []
    total = 0
    for item in items:
        size = n_bytes(item)
        if group and total + size > limit:
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group
