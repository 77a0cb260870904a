"""Runs of a program that TensorFlow traces, where the program's variables are."""

from collections.abc import Hashable, Sequence

import tensorflow as tf

from harness.equivalence.yardstick import Array
from harness.worker.session.named_session import NamedSession, Traced
from strategies.program import ref
from strategies.topology import task_device

v1 = tf.compat.v1
_OWN = "/job:localhost/replica:0/task:0"


class RunsOnServer:
    """A second session on the worker's server, whose variables it shares.

    A prepared call is traced by servers, and what they saw is dropped.

    Args:
        fed: tensors that a step is fed with.
        graph_def: the program's, bound to functions of this process.
        target: of the worker's server. config: of its session.
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
        """See `harness.worker.tracing.profiled_steps.TracedRuns`."""
        named = [[ref(name) for name in fetches], [self._graph.get_operation_by_name(t) for t in targets]]
        fed = dict(zip(self._fed, feeds, strict=True)) if feeds else {}
        metadata = v1.RunMetadata()
        return self._session.run(named, fed, options=options, run_metadata=metadata)[0], metadata

    def close(self) -> None:
        """End the session."""
        self._session.close()


class RunsInSession:
    """The program's own session, where it alone has the program's variables.

    Args:
        fed: as of `RunsOnServer`.
    """

    def __init__(self, session: NamedSession, fed: Sequence[str], task: int) -> None:
        self._session = session
        self._fed = tuple(fed)
        self._task = task
        # One that is prepared anew has its graph built, and compiled, anew.
        self._prepared: dict[Hashable, Traced] = {}

    def run(
        self,
        fetches: Sequence[str],
        targets: Sequence[str],
        feeds: Sequence[Array],
        options: tf.compat.v1.RunOptions,
    ) -> tuple[Sequence[Array], tf.compat.v1.RunMetadata]:
        """See `harness.worker.tracing.profiled_steps.TracedRuns`."""
        fed = self._fed if feeds else ()
        key = fed, tuple(fetches), tuple(targets), options.SerializeToString()
        if key not in self._prepared:
            self._prepared[key] = self._session.traced(fed, fetches, targets, options)
        values, metadata = self._prepared[key](*feeds)
        for device in metadata.step_stats.dev_stats:
            # As workers know it of each other.
            device.device = device.device.replace(_OWN, task_device(self._task))
        return values, metadata

    def close(self) -> None:
        """The session goes on."""
