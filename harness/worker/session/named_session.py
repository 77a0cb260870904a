"""TensorFlow session whose graph is used only by names of operations."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf

# CallableOptions is a public proto that tf.compat.v1 does not export.
from tensorflow.core.protobuf import config_pb2

from harness.worker.variable_parts import Array
from strategies.program import ref
from strategies.tf_bridge.runtime import add_named, named_graph

v1 = tf.compat.v1
Prepared: TypeAlias = Callable[..., Sequence[Array]]
"""Function from fed values, in order, to fetched values."""
Traced: TypeAlias = Callable[..., tuple[Sequence[Array], tf.compat.v1.RunMetadata]]
"""The same, with TensorFlow's metadata of the run."""


class NamedSession:
    """Runs parts of a graph, each prepared on first use.

    Args:
        target: address of a server.
    """

    def __init__(
        self, graph_def: tf.compat.v1.GraphDef, target: str, config: tf.compat.v1.ConfigProto
    ) -> None:
        self._session = v1.Session(target, graph=named_graph(graph_def), config=config)
        self._prepared: dict[Hashable, Prepared] = {}
        self._added: set[str] = set()

    def prepared(
        self, feeds: Sequence[str], fetches: Sequence[str] = (), targets: Sequence[str] = ()
    ) -> Prepared:
        """Prepared callable that feeds, runs and fetches; `Session.run` costs more than a small step."""
        return self._callable(feeds, fetches, targets, v1.RunOptions())

    def traced(
        self,
        feeds: Sequence[str],
        fetches: Sequence[str],
        targets: Sequence[str],
        options: tf.compat.v1.RunOptions,
    ) -> Traced:
        """Prepare the same with tracing; sessions on a server return empty metadata."""
        run = self._callable(feeds, fetches, targets, options)

        def traced(*values: Array) -> tuple[Sequence[Array], tf.compat.v1.RunMetadata]:
            metadata = v1.RunMetadata()
            return run(*values, run_metadata=metadata), metadata

        return traced

    def add(self, graph_def: tf.compat.v1.GraphDef) -> None:
        """Add nodes, unless they were added before. No run may be under way."""
        names = {node.name for node in graph_def.node}
        if not names <= self._added:
            add_named(self._session.graph, graph_def)
            self._added |= names

    def run(
        self, fetches: Sequence[str], feed: Mapping[str, Array], targets: Sequence[str] = ()
    ) -> list[Array]:
        """Fetch tensors and run nodes."""
        known = {ref(name): value for name, value in feed.items()}
        fetched = [ref(name) for name in fetches]
        computed = [name for name in dict.fromkeys(fetched) if name not in known]
        if not computed and not targets:
            return [known[name] for name in fetched]
        key = tuple(known), tuple(computed), tuple(targets)
        if key not in self._prepared:
            self._prepared[key] = self.prepared(list(known), computed, targets)
        known |= zip(computed, self._prepared[key](*known.values()), strict=True)
        return [known[name] for name in fetched]

    def _callable(
        self,
        feeds: Sequence[str],
        fetches: Sequence[str],
        targets: Sequence[str],
        run_options: tf.compat.v1.RunOptions,
    ) -> Prepared:
        options = config_pb2.CallableOptions(
            feed=map(ref, feeds), fetch=map(ref, fetches), target=list(targets), run_options=run_options
        )
        prepared: Prepared = self._session._make_callable_from_options(options)  # noqa: SLF001
        return prepared

    def close(self) -> None:
        self._session.close()
