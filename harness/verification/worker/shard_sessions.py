"""Sessions that run the shards of a captured step: shared ones, or one for each shard."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import numpy as np

from harness.worker.session.capture_store import InitialValues
from harness.worker.session.session import WorkerSession
from harness.worker.session.tensorflow_settings import Use
from harness.worker.variable_parts import Array, Copy, values_of
from strategies.ir.random_ops import reseed
from strategies.ir.train_graph import TrainGraph
from strategies.tf_bridge.program import build_program
from strategies.topology import Shard, Topology

Given = TypeVar("Given")
Made = TypeVar("Made")

# Each takes memory; a single one leaves cores idle in the small operations between large ones.
_AT_ONCE = 2


class ShardSessions:
    """Sessions of the captured graph: one for all shards, or one per rank if the graph draws random numbers.

    Attributes:
        starts_over: True if `load` resets everything: no operation has a random state outside of variables.
        has_random_state: True if shards have their own random state, which advances in a shared session.
    Args:
        step: step without visible effects.
    """

    def __init__(self, step: TrainGraph, initial: InitialValues, shards: Sequence[Shard]) -> None:
        self._initial = initial
        self._shards = shards
        self._own = {v.name: v for v in step.variables if v.rule == "per-replica"}
        self.has_random_state = bool(self._own)
        self._random_state: dict[Copy, Array] = {}
        self.starts_over = reseed(step.graph, 1) is step.graph
        alone = Topology(replicas_per_task=(1,), batch_size=max(s.examples for s in shards))
        graphs = [reseed(step.graph, s.rank) for s in shards]
        distinct = {id(g): g for g in graphs}
        sessions = {
            key: WorkerSession(
                build_program(replace(step, graph=graph), alone, 0, nodes_before=len(graph.nodes)),
                "",
                initial,
                use=Use.PARTS_OF_STEPS,
            )
            for key, graph in distinct.items()
        }
        self._sessions = list(sessions.values())
        self._session_of = [sessions[id(g)] for g in graphs]
        self._threads = ThreadPoolExecutor(_AT_ONCE, "shard")
        self._met_feeds: set[frozenset[str]] = set()
        for session in self._sessions:
            session.setup()

    def load(self) -> None:
        """Give every variable its initial value, and each shard its own random state."""
        self._random_state = {
            (v.name, s.rank): np.array(self._initial.value(v.name, rank=s.rank, seed_word=v.seed_word))
            for v in self._own.values()
            for s in self._shards
        }
        for session in self._sessions:
            session.load()

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        for session in self._sessions:
            session.close()

    def shared(self) -> dict[Copy, Array]:
        read = values_of([self._sessions[0].read()])
        return {(name, None): v for (name, _), v in read.items() if name not in self._own}

    def snapshot(self) -> dict[Copy, Array]:
        return self.shared() | self._random_state

    def assign(self, values: Mapping[Copy, Array], rank: int | None = None) -> None:
        for session in self._sessions if rank is None else [self._session_of[rank]]:
            session.assign(values)

    def fetch(
        self, rank: int, fetches: Sequence[str], feed: Mapping[str, Array], targets: Sequence[str] = ()
    ) -> list[Array]:
        session = self._session_of[rank]
        session.assign({(name, None): self._random_state[name, rank] for name in self._own})
        return session.run(fetches, feed, targets)

    def keep_random_state(self, rank: int) -> None:
        if not self._own:
            return
        moved_on = self._session_of[rank].run([v.read for v in self._own.values()], {})
        self._random_state |= {(name, rank): value for name, value in zip(self._own, moved_on, strict=True)}

    def run_all(self, targets: Sequence[str], feed: Mapping[str, Array]) -> None:
        for session in self._sessions:
            session.run([], feed, targets)

    def each(
        self,
        items: Sequence[Given],
        make: Callable[[Given], Made],
        *,
        feeds: frozenset[str],
        in_turn: bool,
    ) -> Iterator[Made]:
        """Compute a value for each item, two at a time if none affects later ones.

        Args:
            feeds: names of fed nodes; TensorFlow optimizes the graph for each new set of feeds, which two
                threads would both cause.
            in_turn: True if computations affect later ones.
        """
        is_new = feeds not in self._met_feeds
        self._met_feeds.add(feeds)
        if is_new or in_turn or self.has_random_state:
            return map(make, items)
        return self._threads.map(make, items)
