"""What exchanges of encoded gradients have in common: who encodes what, and what they give and wait for."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from strategies.ir.graph import DType, Node
from strategies.ir.train_graph import Boundary, Transfer
from strategies.numerics.compressors.codec import Codec
from strategies.passes.collectives.buckets import static_dims
from strategies.passes.collectives.members import Members
from strategies.passes.collectives.ring.transfers import Brought, Dims
from strategies.passes.compression.compressed_gradients import Additions
from strategies.passes.compression.compressor_state import Memory
from strategies.passes.replicate.kept_state import KeptState
from strategies.passes.replicate.rewire import captured_name
from strategies.plan.compressors import WORD_BYTES, payload_bytes
from strategies.plan.schema import Compression
from strategies.tf_bridge.snippet import Snippet
from strategies.topology import Replica, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A transfer that has been given something, and what comes of it.

    Attributes:
        nodes: that give and do not wait.
        comes: shapes of the tensors in each vector that comes.
        dtype: of these.
    """

    transfer: Transfer
    nodes: tuple[Node, ...]
    comes: Sequence[Sequence[Dims]]
    dtype: DType


Exchanging: TypeAlias = Generator[Given, Sequence[str], Mapping[str, str]]
"""An exchange under way: it gives, gets the tensors that came, gives again of these or ends with the sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoders:
    """Members of one task, what each brings, and what they remember.

    Attributes:
        brought: by name, the same on all replicas, and rank.
        compressions: variable → compressor of its gradient.
        memories: captured boundary → what its compressor remembers.
        additions: take what exchanges add to the step.
    """

    topology: Topology
    task: int
    members: Members
    brought: Brought
    compressions: Mapping[str, Compression]
    memories: Mapping[str, Memory]
    additions: Additions

    @property
    def host(self) -> str:
        """The device of what all replicas of the task share."""
        return self.topology.host_device(self.task)

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """Those of this task that encode."""
        return self.members.local(self.topology, self.task)

    def n_of_task(self, task: int) -> int:
        """How many encode on a task."""
        return len(self.members.local(self.topology, task))

    def states(self, name: str, codec: Codec, replica: Replica) -> list[KeptState]:
        """What a replica's compressor remembers of a gradient."""
        b = self.brought[name, replica.rank]
        return self.memories[captured_name(b)].states(b, codec, replica.rank, replica.device)

    def n_words(self, b: Boundary) -> int:
        """Of the payload of a gradient, by a codec that makes words."""
        return payload_bytes(static_dims(b), b.dtype, self.compressions[b.variable]) // WORD_BYTES

    def added(self, snippet: Snippet, prefix: str, inputs: Sequence[str], device: str) -> tuple[str, ...]:
        """What a snippet makes of these tensors; its nodes are added to the step."""
        nodes, results = snippet.splice(prefix, inputs, device=device)
        self.additions.nodes += nodes
        return results
