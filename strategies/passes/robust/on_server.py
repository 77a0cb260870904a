"""A server's queues of what each worker sends of its gradients: all are taken, and combined by a rule."""

from collections.abc import Iterable
from dataclasses import dataclass

from strategies.ir.graph import Attr, Node, tensor
from strategies.passes.robust.gradient_vector import Aggregated, GradientVector, Sent
from strategies.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerGathering:
    """Workers find its queues by their shared names; each holds what one worker sends in a step.

    Attributes:
        device: of the server. task: that takes.
        name: of its queues.
    """

    vector: GradientVector
    device: str
    task: int
    name: str

    def push(self, task: int, sent: Sent, after: Iterable[str]) -> list[Node]:
        """Nodes that send what a worker has laid ready once others have run; the push is last."""
        queue = self._queue(task)
        push = Node(
            name=f"{queue.name}/push",
            op="QueueEnqueueV2",
            inputs=(queue.name, *sent.tensors, *(f"^{name}" for name in after)),
            attrs={"Tcomponents": self.vector.sent_types, "timeout_ms": -1},
            device=self.device,
        )
        return [queue, push]

    def take(self, topology: Topology, rank: int, owners: tuple[int, ...]) -> tuple[list[Node], Aggregated]:
        """Nodes that wait for all workers and take what they have sent, and what a rule makes of it.

        Whoever takes makes them, beside its own push.

        Args:
            rank: replica whose session keeps what the rule keeps. owners: all that keep such.
        """
        takes: list[Node] = []
        nodes: list[Node] = []
        for task in range(topology.n_tasks):
            queue = self._queue(task)
            attrs: dict[str, Attr] = {"component_types": self.vector.sent_types, "timeout_ms": -1}
            take = Node(
                name=f"{queue.name}/take",
                op="QueueDequeueV2",
                inputs=(queue.name,),
                attrs=attrs,
                device=self.device,
            )
            takes.append(take)
            # The own push has the queue already.
            nodes += [take] if task == self.task else [queue, take]
        n_sent = len(self.vector.sent_types)
        # Of each kind that of every worker: vectors, and of each sparse gradient rows and then ids.
        received = [tensor(take.name, kind) for kind in range(n_sent) for take in takes]
        aggregated = self.vector.aggregated(
            received, topology, rank=rank, owners=owners, device=self.device, gathered=False
        )
        return nodes, aggregated

    def _queue(self, task: int) -> Node:
        name = f"{self.name}/worker_{task}"
        attrs: dict[str, Attr] = {
            "component_types": self.vector.sent_types,
            "shapes": (),
            "capacity": 1,
            "container": b"",
            "shared_name": name.encode(),
        }
        return Node(name=name, op="FIFOQueueV2", attrs=attrs, device=self.device)
