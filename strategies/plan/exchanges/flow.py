"""A flow: one message of a step, or several that are alike, and facts about a run that flows depend on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from strategies.params import Params
from strategies.plan.aggregation import Aggregation
from strategies.plan.execution import Execution
from strategies.plan.links import Links, Ring, Vector
from strategies.plan.partitions import AlikeParts
from strategies.plan.payload import WireTypes, vector_type
from strategies.plan.schema import Compression, PlanNode, StepSummary, VariableSummary
from strategies.topology import Topology

Op: TypeAlias = Literal["sum", "scatter", "gather", "pull", "push"]
Values: TypeAlias = Literal["gradients", "ids", "read values", "new values", "averages", "statistics"]
Carrier: TypeAlias = Literal["grpc", "collectives", "nccl", "tcp", "cores"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flow:
    """An exchange in every step: one message, or several that are alike.

    All members wait for each other in a collective: `sum`, `scatter` or `gather`. In a `pull` servers send
    values to workers, in a `push` workers send gradients or ids to servers; each server and each worker
    exchange a message of their own.

    Attributes:
        values: `gradients` (also rows and their ids, and new forward state) before an update; `ids` of rows
            that a worker looks up on a server; `read values`, which a replica needs before it reads them;
            `new values` after an update; `averages` of variables after an update, every `period` steps;
            `statistics` of the batch, within the forward or backward pass.
        variables: names of variables, or of parts that are sent alone; layers for statistics. A server sends
            or receives only its own parts of these.
        transport: `grpc` between workers and servers; `collectives` of TensorFlow, by its own ring; `nccl`;
            `tcp`, the workers' own ring; `cores`, the links of TPU cores.
        links: bytes per step from task to task.
        n_members: number of replicas or of workers that take part, on all tasks.
        n_bytes: whole payload of a collective per step as it is sent; for a gather, all members' shares
            together; 0 for servers, and for rows, whose number is known only in a run.
        value_bytes: bytes of all values in memory, in their own type, without a compressor and whatever the
            period is; an upper bound for rows.
        compressor: compressor of the values, which are encoded before they are sent and decoded after; the
            workers' own ring rounds bfloat16 itself (`compressors.is_rounded_on_wire`).
        n_messages: number of messages that a member sends at once, among which the bytes are divided evenly;
            for servers, between one server and one worker.
        n_rounds: number of times per step that it happens, each after the one before.
        period: number of steps between two exchanges; the bytes above are divided by it.
    """

    op: Op
    values: Values
    variables: tuple[str, ...]
    transport: Carrier
    links: Links
    n_members: int
    n_bytes: float = 0.0
    value_bytes: float
    compressor: Compression | None = None
    n_messages: int = 1
    n_rounds: int = 1
    period: int = 1


Parts: TypeAlias = Sequence[tuple[AlikeParts, VariableSummary]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Facts about a run that all of its exchanges depend on.

    Attributes:
        n_servers: number of workers, the first ones, that serve a copy of all variables.
        types: types of gradients sent to servers and rules.
        packs_are_whole: True if each bucket is one message, as in TensorFlow's own strategies.
        on_nccl: True if a parameter requests NCCL for TensorFlow's own strategy.
    """

    topology: Topology
    execution: Execution
    n_servers: int
    types: WireTypes
    packs_are_whole: bool
    on_nccl: bool

    @classmethod
    def of(cls, step: StepSummary, topology: Topology, params: Params) -> "RunFacts":
        execution = Execution.of(params)
        rule = Aggregation.of(params, topology.n_tasks)
        trained = (v.dtype for v in step.variables if v.kind == "trainable" and v.synced)
        return cls(
            topology=topology,
            execution=execution,
            n_servers=1 if rule is None else rule.servers,
            types=WireTypes(
                vector=None if rule is None else vector_type(trained), are_accumulated=execution.sync
            ),
            packs_are_whole="bytes_per_pack" in params,
            on_nccl=params.get("communication") == "nccl",
        )

    @property
    def kinds(self) -> Sequence[Sequence[int]]:
        """Kind of tasks → examples of each replica of such a task."""
        return self.topology.kinds().examples

    def shards(self, *examples: int) -> Sequence[float]:
        """Examples of each micro-batch of replicas with these examples."""
        k = self.topology.micro_batches
        return [n / k for n in examples for _ in range(k)]

    def carrier(self, node: PlanNode) -> Carrier:
        if node.transport in ("tcp", "nccl"):
            return node.transport
        return "nccl" if self.on_nccl else "collectives"

    def ring(self, n_bytes: float | Vector) -> Ring:
        """A ring over all members in rank order, which crosses from each task to the next."""
        return Ring(n_tasks=self.topology.n_tasks, forwarded=n_bytes)

    def sum_ring(self, n_members: int, n_bytes: float, *, period: int = 1) -> Ring:
        """A ring in which each of n members sends 2(n−1)/n of a buffer, every `period` steps."""
        # One division, so that halves of a byte are exact.
        return self.ring(2 * (n_members - 1) * n_bytes / (n_members * period))

    def gather_ring(self, n_bytes: float, *, period: int = 1) -> Ring:
        """A ring in which each replica sends (N−1)/N of a buffer, every `period` steps."""
        n = self.topology.n_replicas
        return self.ring((n - 1) * n_bytes / (n * period))

    def own_ring(self, shares: Sequence[float] | Vector, *, stays: int) -> Ring:
        """Links of a ring in which each worker passes on all workers' shares but one.

        Args:
            shares: bytes by task.
            stays: distance in the ring, counted forwards, to the worker whose share is not passed on.
        """
        return self.ring(sum(shares) - np.roll(shares, -stays))
