"""Replicated variables: one copy on each core that act as one.

In the computation all copies are one replicated handle. Outside of it each is loaded and read by itself: what
is loaded goes to all, and the first one is what a reader sees.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from strategies.ir.graph import DType, Node, producer
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import Renames, ancestors, renamed_copies
from strategies.ir.variable import Variable
from strategies.passes.replicate.step_copies import replica_prefix
from strategies.passes.tpu.replicated.replicated_nodes import replicated_input
from strategies.topology import Replica, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedVariables:
    """The copies of a step's variables.

    Attributes:
        nodes: handles, loads and reads of all copies, and the replicated handles under the captured names.
        renames: rank → references as its copies have them.
    """

    nodes: tuple[Node, ...]
    renames: Mapping[int, Renames]

    @classmethod
    def of(cls, step: TrainGraph, topology: Topology) -> "ReplicatedVariables":
        """A copy of each variable on each replica's device."""
        access = [name for v in step.variables for name in map(producer, v.access)]
        needed = ancestors(step.graph, access)
        originals = [node for node in step.graph.nodes if node.name in needed]
        nodes: list[Node] = []
        renames: dict[int, Renames] = {}
        for replica in topology.replicas():
            prefix = replica_prefix(replica.rank)
            renames[replica.rank] = Renames({node.name: prefix + node.name for node in originals})
            nodes += _on(replica, originals, renames[replica.rank], prefix)
        for v in step.variables:
            refs = [own[v.handle] for own in renames.values()]
            mirrored = v.rule != "per-replica"
            nodes.append(replicated_input(v.handle, refs, DType("resource"), mirrored=mirrored))
        return cls(nodes=tuple(nodes), renames=renames)

    def of_replica(self, v: Variable, rank: int) -> Variable:
        """One replica's copy of a variable."""
        handle, placeholder, load, read = (self.renames[rank][name] for name in v.access)
        return replace(v, handle=handle, placeholder=placeholder, load=load, read=read, rank=rank)


def _on(replica: Replica, originals: list[Node], renames: Renames, prefix: str) -> Iterator[Node]:
    for node in renamed_copies(originals, renames, frames=prefix, device=lambda _: replica.device):
        if node.op == "VarHandleOp":
            shared_name = node.attrs["shared_name"]
            assert isinstance(shared_name, bytes)
            yield replace(node, attrs={**node.attrs, "shared_name": prefix.encode() + shared_name})
        else:
            yield node
