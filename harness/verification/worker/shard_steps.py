"""Steps of the reference: shards start from the same state, are combined outside of TensorFlow, and fed back.

Gradients are fed at the boundary, the update runs once, and forward state is merged by its rule. If a step
has several levels of gradients and updates, shards run once for each, with the values that have already
crossed boundaries.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from harness.verification.reference import Gradient, Returned, returned
from harness.verification.worker.boundary_values import combined_norms
from harness.verification.worker.rounding import (
    Crossed,
    RoundedReads,
    RoundedSums,
    Rounding,
    in_threads,
    merged_rows,
    shares,
)
from harness.verification.worker.shard_sessions import ShardSessions
from harness.worker.session.capture_store import InitialValues
from harness.worker.variable_parts import Array, Copy
from strategies.ir.graph import producer
from strategies.ir.random_ops import draws_from_op
from strategies.ir.replica_updates import forward_backward_nodes, replica_targets
from strategies.ir.side_effects import without_visible_effects
from strategies.ir.train_graph import Boundary, Statistic, TrainGraph
from strategies.ir.traversal import ancestors, levels_of
from strategies.topology import Shard, Topology

Fetch: TypeAlias = Callable[[Shard, Sequence[str], Mapping[str, Array]], Sequence[Array]]
"""Function from a shard, tensors and fed values, besides its examples, to the tensors' values."""


class JointStatistics:
    """Statistics computed from all shards of a step; each level depends on those before it."""

    def __init__(self, step: TrainGraph, statistics: Sequence[Statistic]) -> None:
        self._step = step
        self._statistics = statistics
        is_sum = step.losses[0].reduction == "sum"
        self._summed = {s.node for s in statistics if s.backward and is_sum}

    def with_batch_size(self, shards: Sequence[Shard], fetch: Fetch, sums: RoundedSums) -> dict[str, Array]:
        weights = shares(shards)
        by_name = self._step.graph.by_name
        joint: dict[str, Array] = {}
        for level in sorted({s.level for s in self._statistics}):
            nodes = [s.node for s in self._statistics if s.level == level]
            refs = [by_name[n].inputs[0] for n in nodes]
            own = [
                fetch(shard, refs, self.of_shard(weight, joint))
                for shard, weight in zip(shards, weights, strict=True)
            ]
            joint |= {
                node: sums.of_all(
                    [values[k] for values in own], shards, "sum" if node in self._summed else "mean"
                )
                for k, node in enumerate(nodes)
            }
        return joint

    def of_shard(self, share: float, joint: Mapping[str, Array]) -> dict[str, Array]:
        """Statistics in the scale of a shard's loss, which counts by its share in a mean, and by 1 in a sum.

        Args:
            share: the shard's share of the batch's examples.
        """
        return {name: value * share if name in self._summed else value for name, value in joint.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTurns:
    """Turns of tensors and targets, counted from 1: each comes after the boundaries that it depends on.

    Attributes:
        sources: boundary → tensors that cross it in a shard: values and row ids, the latter None if dense.
        fetches: tensor → its turn.
        replica_targets: target that each shard runs → its turn.
        draws: tensors drawn from states of ops. A second run cannot repeat them, and a later turn, or an
            update, may run forward again: fed nodes still run for nodes that wait for them.
    """

    boundaries: tuple[Boundary, ...]
    sources: Mapping[str, tuple[str, str | None]]
    fetches: Mapping[str, int]
    replica_targets: Mapping[str, int]
    draws: frozenset[str]
    n_turns: int

    @classmethod
    def of(cls, step: TrainGraph, beside: Sequence[str]) -> "StepTurns":
        by_name = step.graph.by_name
        sources = {
            b.values: (
                by_name[b.values].inputs[0],
                None if b.indices is None else by_name[b.indices].inputs[0],
            )
            for b in step.boundaries
        }
        levels = levels_of(
            step.graph, {n for b in step.boundaries for n in (b.values, b.indices) if n is not None}
        )
        draws = _draws(step)
        refs = [step.losses[0].tensor, *(result.tensor for result in step.results), *beside]
        refs += [ref for source in sources.values() for ref in source if ref is not None]
        fetches = {ref: levels[producer(ref)] + 1 for ref in [*refs, *sorted(draws)]}
        targets = {target: levels[target] + 1 for target in replica_targets(step)}
        return cls(
            boundaries=step.boundaries,
            sources=sources,
            fetches=fetches,
            replica_targets=targets,
            draws=draws,
            n_turns=max(*fetches.values(), *targets.values(), 1),
        )

    def contribution(self, b: Boundary, fetched: Mapping[str, Array]) -> Crossed:
        values, indices = self.sources[b.values]
        return fetched[values], None if indices is None else fetched[indices]

    def crossed(self, fetched: Mapping[str, Array]) -> dict[str, Crossed]:
        return {b.values: self.contribution(b, fetched) for b in self.boundaries}

    def fed(self, combined: Mapping[str, Crossed]) -> dict[str, Array]:
        fed: dict[str, Array] = {}
        for b in self.boundaries:
            if b.values in combined:
                values, indices = combined[b.values]
                fed[b.values] = values
                if b.indices is not None and indices is not None:
                    fed[b.indices] = indices
        return fed


def _draws(step: TrainGraph) -> frozenset[str]:
    drawing = {n.name for n in step.graph.nodes if draws_from_op(n)}
    if not drawing:
        return frozenset()
    targets = [*step.state_targets, *(target for region in step.regions for target in region.targets)]
    needed = forward_backward_nodes(step) | ancestors(step.graph, targets)
    return frozenset(
        ref
        for node in step.graph.nodes
        if node.name in needed
        for ref in node.data_inputs
        if producer(ref) in drawing
    )


Combine: TypeAlias = Callable[
    [Rounding, int, Sequence[Shard], Sequence[Mapping[str, Crossed]]], Mapping[str, Crossed]
]
"""Function from a rounding, a step and the shards' values at boundaries to the inputs of updates."""


class StateShapeError(Exception):
    """A shard assigns a value of another shape than its variable's, which a session accepts silently.

    Args:
        node: node whose output is assigned.
    """

    def __init__(self, boundary: Boundary, node: str, got: tuple[int, ...]) -> None:
        expected = list(boundary.shape.dims or ())
        super().__init__(f"shape {list(got)} for variable {boundary.variable!r} of shape {expected}")
        self.node = node


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    shard: Shard
    examples: Sequence[Array]
    fed: Mapping[str, Array]


class ShardSteps:
    """Steps of a captured step on global batches, shard by shard.

    Attributes:
        results: values that the last step returned besides its loss.
        losses: loss of each shard of the last batch. crossed: values that each shard sent across each
            boundary.
        beside: values of further tensors of each shard.
        with_gradient: variables of the step's updates with a nonzero gradient so far; gradients of others may
            only be clipped together with theirs.
        gradient_norms: norms in the first step, as used by the update.
        starts_over: True if it can be reset to its initial state.
    Args:
        beside: tensors to fetch in addition.
    """

    def __init__(
        self,
        step: TrainGraph,
        initial: InitialValues,
        topology: Topology,
        *,
        beside: Sequence[str] = (),
    ) -> None:
        step = without_visible_effects(step)
        self._step = step
        self.results: tuple[Returned, ...] = ()
        self._widest = self._topology = topology
        shards = topology.shards()
        self._sessions = ShardSessions(step, initial, shards)
        self.starts_over = self._sessions.starts_over
        joint = step.joint_statistics(every_layer=topology.global_statistics)
        self._joint = JointStatistics(step, joint if len(shards) > 1 else ())
        self._beside = tuple(beside)
        self._turns = StepTurns.of(step, self._beside)

    def begin(
        self,
        rounding: Rounding,
        eps: float = 0.0,
        *,
        topology: Topology | None = None,
        fed: Mapping[int, Mapping[str, Array]] | None = None,
    ) -> None:
        """Give every variable its initial value, and use this way of rounding from now on.

        Args:
            eps: rounding unit of the coarsest dtype in the forward and backward pass.
            topology: topology with no more shards than that of the constructor, which is the default.
            fed: rank of a shard → tensors that it takes as inputs instead of computing them.
        """
        self._topology = topology or self._widest
        self._fed = fed or {}
        self._sums = RoundedSums(rounding)
        self._reads = RoundedReads(rounding, eps)
        self.with_gradient: set[str] = set()
        self.gradient_norms: Mapping[Gradient, Sequence[float]] = {}
        self._sessions.load()

    def __enter__(self) -> "ShardSteps":
        return self

    def __exit__(self, *exc: object) -> None:
        self._sessions.close()

    def snapshot(self) -> dict[Copy, Array]:
        return self._sessions.snapshot()

    def step(self, n: int, batch: Sequence[Array], combine: Combine | None) -> float:
        loss, combined = self.rounded_crossing(batch)
        if combine is not None:
            combined |= combine(self._sums.rounding, n, self._shards_of(batch), self.crossed)
        if n == 0:
            self.gradient_norms = combined_norms(self._step, combined)
        updated = {region.variable for region in self._step.regions}
        self.with_gradient |= {
            b.variable
            for b in self._step.gradients()
            if b.variable in updated and np.any(combined[b.values][0])
        }
        self._update(combined, batch)
        return loss

    def rounded_crossing(self, batch: Sequence[Array]) -> tuple[float, dict[str, Crossed]]:
        with self._rounded_trainables():
            return self.crossing([self._reads.of_examples(part) for part in batch])

    @contextmanager
    def _rounded_trainables(self) -> Iterator[None]:
        """Trainables with rounding errors for forward and backward; the update uses the stored ones."""
        if self._reads.exact:
            yield
            return
        names = [v.name for v in self._step.variables if v.kind == "trainable"]
        stored = {copy: value for copy, value in self.snapshot().items() if copy[0] in names}
        self._sessions.assign(dict(zip(stored, self._reads.of_each([*stored.values()]), strict=True)))
        yield
        self._sessions.assign(stored)

    def crossing(self, batch: Sequence[Array]) -> tuple[float, dict[str, Crossed]]:
        """Loss of a global batch, and the combined values of all shards at each boundary.

        A boundary of a later level depends on the state after the earlier updates: each shard runs the step
        from its beginning again, with the values that have already crossed boundaries.
        """
        shards = self._shards_of(batch)
        weights, joint = shares(shards), self.joint_statistics(batch)
        fetched: list[dict[str, Array]] = [{} for _ in shards]
        combined: dict[str, Crossed] = {}
        before = self._sessions.shared() if self._turns.n_turns > 1 else {}
        for turn in range(1, self._turns.n_turns + 1):
            fed = self._turns.fed(combined)
            order = self._sums.order(len(shards))
            drawn = [{ref: own[ref] for ref in self._turns.draws if ref in own} for own in fetched]
            passes = [
                _Pass(
                    shard=shards[i],
                    examples=_examples(shards[i], batch),
                    fed={**self._joint.of_shard(weights[i], joint), **fed, **drawn[i]},
                )
                for i in order
            ]
            outputs = self._sessions.each(
                passes,
                partial(self._forward, turn, before),
                feeds=frozenset[str]().union(*(one_pass.fed for one_pass in passes), *self._fed.values()),
                # Later turns change all state.
                in_turn=self._turns.n_turns > 1 or bool(self._turns.replica_targets),
            )
            for i, own in zip(order, outputs, strict=True):
                fetched[i] |= own
                self._require_shapes(turn, own)
            crossing = [b for b in self._step.boundaries if b.level == turn]
            contributions = [[self._turns.contribution(b, own) for own in fetched] for b in crossing]
            sums = self._sums.apart(len(crossing))
            crossed = in_threads(partial(self._crossed, shards), sums, crossing, contributions)
            combined |= {b.values: of_boundary for b, of_boundary in zip(crossing, crossed, strict=True)}
        self.results = returned(
            (replace(result, rank=shards[i].rank, weight=weights[i]), fetched[i][result.tensor])
            for i in self._sums.order(len(shards))
            for result in self._step.results
        )
        self.crossed = [self._turns.crossed(own) for own in fetched]
        self._drawn = {ref: fetched[0][ref] for ref in self._turns.draws}
        self.beside = [{ref: own[ref] for ref in self._beside} for own in fetched]
        loss = self._step.losses[0]
        self.losses = [float(own[loss.tensor]) for own in fetched]
        return self._sums.of_losses(self.losses, shards, loss.reduction), combined

    def _crossed(
        self, shards: Sequence[Shard], sums: RoundedSums, b: Boundary, contributions: Sequence[Crossed]
    ) -> Crossed:
        crossed = sums.of_boundary(b, contributions, shards)
        return merged_rows(*crossed) if self._topology.merges_rows else crossed

    def _require_shapes(self, turn: int, own: Mapping[str, Array]) -> None:
        for b in self._step.boundaries:
            if b.role == "state" and b.level == turn and b.shape.dims is not None:
                tensor, got = self._turns.sources[b.values][0], self._turns.contribution(b, own)[0].shape
                sizes = zip(b.shape.dims, got, strict=False)
                if len(got) != len(b.shape.dims) or any(size not in (-1, n) for size, n in sizes):
                    raise StateShapeError(b, producer(tensor), got)

    def values(self, batch: Sequence[Array], tensors: Sequence[str]) -> list[dict[str, Array]]:
        return [
            dict(zip(tensors, self._fetch(shard, _examples(shard, batch), tensors, {}), strict=True))
            for shard in self._shards_of(batch)
        ]

    def joint_statistics(self, batch: Sequence[Array]) -> dict[str, Array]:
        return self._joint.with_batch_size(
            self._shards_of(batch),
            lambda shard, refs, fed: self._fetch(shard, _examples(shard, batch), refs, fed),
            self._sums,
        )

    def _shards_of(self, batch: Sequence[Array]) -> Sequence[Shard]:
        return replace(self._topology, batch_size=len(batch[0])).shards()

    def _fetch(
        self,
        shard: Shard,
        examples: Sequence[Array],
        fetches: Sequence[str],
        joint: Mapping[str, Array],
        targets: Sequence[str] = (),
    ) -> list[Array]:
        feed = {b.node: value for b, value in zip(self._step.batch, examples, strict=True)}
        fed = self._fed.get(shard.rank, {})
        return self._sessions.fetch(shard.rank, fetches, {**feed, **joint, **fed}, targets)

    def _forward(self, turn: int, before: Mapping[Copy, Array], one_pass: _Pass) -> dict[str, Array]:
        """Run a shard's forward and backward pass for a turn; of its state, only the random one advances.

        Args:
            before: all other state, which later turns change.
        """
        shard = one_pass.shard
        fetches = [ref for ref, in_turn in self._turns.fetches.items() if in_turn == turn]
        targets = [target for target, in_turn in self._turns.replica_targets.items() if in_turn <= turn]
        values = self._fetch(shard, one_pass.examples, fetches, one_pass.fed, targets)
        if turn == self._turns.n_turns:
            self._sessions.keep_random_state(shard.rank)
        if turn > 1:
            self._sessions.assign(before, shard.rank)
        return dict(zip(fetches, values, strict=True))

    def _update(self, combined: Mapping[str, Crossed], batch: Sequence[Array]) -> None:
        # Updates wait for reads of forward, which may need a batch; its result is not used.
        first = self._shards_of(batch)[0]
        feed = (
            self._turns.fed(combined)
            | self._drawn
            | {
                b.node: part[first.start : first.stop]
                for b, part in zip(self._step.batch, batch, strict=True)
            }
        )
        targets = [t for region in self._step.regions for t in region.targets]
        targets += [t for t in self._step.state_targets if t not in self._turns.replica_targets]
        self._sessions.run_all(targets, feed)


def _examples(shard: Shard, batch: Sequence[Array]) -> list[Array]:
    return [part[shard.start : shard.stop] for part in batch]
