"""Dependencies between updates: which of them one replica alone can make for all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strategies.ir.graph import producer
from strategies.ir.partitioning.propagate import Spread
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import ancestors

_OUTSIDE = ""
"""Stands for whatever reads an update's results and is no update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReach:
    """Who reads what of the update side.

    Attributes:
        apart: trainables whose value and slots no other update reads.
        shared_gradients: trainables whose gradient other updates read, as clipping by a global norm does.
        readers: node of the update side → two of the variables, at most, whose updates need its result.
    """

    apart: frozenset[str]
    shared_gradients: frozenset[str]
    readers: Mapping[str, Sequence[str]]

    def parts_apart(self, found: Spread) -> frozenset[str]:
        """Trainables no part of which needs what another part's update has computed.

        A reduction over a whole gradient that all updates read is one over a gradient that all replicas have.

        Args:
            found: how updates follow parts along some axis.
        """
        together = {
            outcome.variable
            for node, outcome in found.outcomes.items()
            if outcome.combine is not None and list(self.readers.get(node, ())) == [outcome.variable]
        }
        return self.apart - together - set(found.refused)


def update_reach(step: TrainGraph) -> UpdateReach:
    """Follow the data of updates back, from every assignment and from what reads their results elsewhere."""
    readers = _readers(step)
    gradients = {n: b.variable for b in step.gradients() for n in (b.values, b.indices) if n is not None}
    trainables = set(gradients.values())
    families = {v.handle: v.slot_of or v.name for v in step.variables}
    apart, shared = set(trainables), set()
    for node, names in readers.items():
        owner = families.get(node)
        if owner in trainables and any(name != owner for name in names):
            apart.discard(owner)
        if node in gradients and any(name != gradients[node] for name in names):
            shared.add(gradients[node])
    return UpdateReach(apart=frozenset(apart), shared_gradients=frozenset(shared), readers=readers)


def _readers(step: TrainGraph) -> dict[str, list[str]]:
    by_name = step.graph.by_name
    update = step.update_nodes()
    own = {n for b in step.boundaries for n in (b.values, b.indices) if n is not None}
    own |= update.union(v.handle for v in step.variables if v.slot_of is not None)
    run = ancestors(step.graph, [*step.targets(), *step.returned()])
    waiting = [(target, region.variable) for region in step.regions for target in region.targets]
    waiting += [
        (producer(ref), _OUTSIDE)
        for name in run - update
        for ref in by_name[name].data_inputs
        if producer(ref) in own
    ]
    readers: dict[str, list[str]] = {}
    while waiting:
        name, reader = waiting.pop()
        names = readers.setdefault(name, [])
        # Two are enough to tell that there is another one, and keep the walk linear.
        if reader in names or len(names) == 2:
            continue
        names.append(reader)
        if name in update:
            waiting += [(producer(ref), reader) for ref in by_name[name].data_inputs]
    return readers
