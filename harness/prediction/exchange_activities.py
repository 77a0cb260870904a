"""Activities of exchanges: pulls and pushes of parameter servers, and collectives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.prediction.costs import Costs
from harness.prediction.step_activities import PerClass, StepActivities
from harness.prediction.task_classes import TaskClasses
from strategies.plan.exchanges.collectives import SWAPPED_BYTES
from strategies.plan.exchanges.flow import Flow
from strategies.plan.links import Links, ServerLinks
from strategies.plan.partitions import alike_parts
from strategies.plan.payload import ID_BYTES, row_bytes
from strategies.plan.schema import Plan, StepSummary


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange with its number, which names its activities."""

    number: int
    flow: Flow

    def __str__(self) -> str:
        return f"{self.flow.values} {self.number}"

    @property
    def is_served(self) -> bool:
        return self.flow.transport == "grpc"

    @property
    def is_read(self) -> bool:
        """True if replicas use its values in the step."""
        return self.flow.values in ("read values", "ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A class of servers and a class of workers that exchange messages.

    Attributes:
        server: class of the servers; None for those that are not simulated.
        n_bytes: bytes between one server and one worker.
        n_servers: servers of the class with which each worker exchanges messages. n_workers: workers of the
            class with which each server does.
    """

    server: int | None
    worker: int
    n_bytes: float
    n_servers: int
    n_workers: int


class ExchangeActivities:
    """Adds the activities of a step's exchanges."""

    def __init__(
        self, plan: Plan, step: StepSummary, classes: TaskClasses, costs: Costs, activities: StepActivities
    ) -> None:
        tables = {v.name for v in step.variables if v.sparse}
        self._variable_of = {parts.name: node.variable for node in plan.nodes for parts in alike_parts(node)}
        self._row_bytes = {n.variable: row_bytes(n) for n in plan.nodes if n.variable in tables}
        self._classes = classes
        self._first = classes.first
        self._costs = costs
        self._activities = activities
        self._pairs_of: dict[int, list[_Pair]] = {}
        self._requests: dict[int, str] = {}
        self._ids: dict[tuple[str, int, int | None], str] = {}

    def variables(self, flow: Flow) -> set[str]:
        return {self._variable_of.get(name, name) for name in flow.variables}

    def _bytes_per_row(self, flow: Flow) -> float | None:
        """Mean bytes of a row, with its id where that is sent too; None if values are not rows of tables."""
        crosses_whole = flow.op in ("sum", "scatter") or (
            flow.transport != "grpc" and flow.values != "gradients"
        )
        sizes = [self._row_bytes[name] for name in self.variables(flow) if name in self._row_bytes]
        if crosses_whole or not sizes:
            return None
        return sum(sizes) / len(sizes) + (0 if flow.op == "pull" else ID_BYTES)

    def arrivals(self, e: Exchange, number: int) -> list[str]:
        """Activities after which a task has the values of an exchange."""
        if not e.is_served:
            return [f"{e} take {number}"]
        if e.flow.values == "ids":
            return []
        return [f"{e} {pair.server}→{number}" for pair in self._pairs(e) if pair.worker == number]

    def _pairs(self, e: Exchange) -> Sequence[_Pair]:
        if e.number not in self._pairs_of:
            self._pairs_of[e.number] = list(self._exchanging(e.flow.links))
        return self._pairs_of[e.number]

    def _exchanging(self, links: Links) -> Iterator[_Pair]:
        assert isinstance(links, ServerLinks)
        rows = {int(server): row for row, server in enumerate(links.servers)}
        simulated = {task for tasks in self._classes.alike.values() for task in tasks}
        apart = [row for server, row in rows.items() if server not in simulated]
        for worker, working in self._classes.members.items():
            kind = links.kinds.of_task[working[0]]
            for server, serving in self._classes.alike.items():
                # No task exchanges messages with itself.
                itself = int(worker == server)
                if serving[0] in rows and len(working) > itself:
                    yield _Pair(
                        server=server,
                        worker=worker,
                        n_bytes=float(links.n_bytes[rows[serving[0]], kind]),
                        n_servers=len(serving) - itself,
                        n_workers=len(working) - itself,
                    )
            if apart:
                mean_bytes = float(links.n_bytes[apart, kind].mean())
                yield _Pair(
                    server=None,
                    worker=worker,
                    n_bytes=mean_bytes,
                    n_servers=len(apart),
                    n_workers=len(working),
                )

    def exchanged(self, e: Exchange, after: PerClass, ends: PerClass) -> dict[int, list[str]]:
        """Activities of an exchange.

        Args:
            after: class → activities before its values can be sent.
            ends: class → activities that must end before it takes the result of a collective.
        Returns:
            Class → activities after which it has the result; empty for pulls and ids, see `arrivals`.
        """
        if not e.is_served:
            return self._collective(e, after, ends)
        if e.flow.values == "ids":
            return self._send_ids(e, after)
        return self._pulls(e, after) if e.flow.op == "pull" else self._pushes(e, after)

    def _request(self, worker: int, after: PerClass) -> str:
        """Request of a worker for the values of a step, which all leave together."""
        if worker not in self._requests:
            self._requests[worker] = self._activities.add(
                f"ask {worker}", least_s=self._costs.servers.request_s, after=after[worker]
            )
        return self._requests[worker]

    def _send_ids(self, e: Exchange, after: PerClass) -> dict[int, list[str]]:
        """Ids that servers must have before they look up rows."""
        cost = self._costs.servers
        for pair in self._pairs(e):
            sent = self._activities.add(
                f"{e} {pair.worker}→{pair.server}",
                cpu={pair.worker: e.flow.n_messages * e.flow.n_rounds * cost.client_s * pair.n_servers},
                least_s=max(cost.ids_s, cost.latency_s),
                after=[self._request(pair.worker, after)],
                out={pair.worker: pair.n_bytes * pair.n_servers},
                into={pair.server: pair.n_bytes * pair.n_workers},
            )
            self._ids |= {(name, pair.worker, pair.server): sent for name in e.flow.variables}
        return {}

    def _pulls(self, e: Exchange, after: PerClass) -> dict[int, list[str]]:
        cost, flow = self._costs.servers, e.flow
        bytes_per_row = self._bytes_per_row(flow)
        n_messages = flow.n_messages * flow.n_rounds
        message_s = n_messages * cost.message_s + len(flow.variables) * cost.variable_s
        for pair in self._pairs(e):
            names = f"{pair.worker}→{pair.server}"
            request = self._request(pair.worker, after)
            ids = (self._ids.get((name, pair.worker, pair.server)) for name in flow.variables)
            read_s = message_s + (cost.row_s * pair.n_bytes / bytes_per_row if bytes_per_row else 0.0)
            read = self._activities.add(
                f"{e} read {names}",
                cpu={pair.server: read_s * pair.n_workers},
                lane=pair.server,
                after=[sent for sent in ids if sent is not None] or [request],
            )
            received_s = pair.n_bytes * cost.receive_s + n_messages * cost.client_s
            self._activities.send(
                f"{e} {pair.server}→{pair.worker}",
                cpu=_both(
                    (pair.server, pair.n_bytes * cost.send_s * pair.n_workers),
                    (pair.worker, received_s * pair.n_servers),
                ),
                least_s=cost.latency_s,
                after=[read],
                connection=(pair.server, pair.worker),
                out={pair.server: pair.n_bytes * pair.n_workers},
                into={pair.worker: pair.n_bytes * pair.n_servers},
            )
        return {}

    def _pushes(self, e: Exchange, after: PerClass) -> dict[int, list[str]]:
        """Gradients that workers send to servers, and servers add up."""
        cost, flow = self._costs.servers, e.flow
        assert isinstance(flow.links, ServerLinks)
        n_messages = flow.n_messages * flow.n_rounds
        message_s = n_messages * cost.message_s + len(flow.variables) * cost.variable_s
        bytes_per_row = self._bytes_per_row(flow)
        add_s, table_s = cost.add_s, 0.0
        if bytes_per_row is not None:
            add_s, table_s = add_s + cost.row_s / bytes_per_row, cost.table_s
        own_s = table_s + flow.value_bytes / len(flow.links.servers) * add_s
        combined_s = 0.0 if bytes_per_row is None else table_s + flow.value_bytes * cost.row_s / bytes_per_row
        encoded = {
            number: self._encoded(e, number, after[number], combined_s) for number in self._classes.members
        }
        added: dict[int, list[str]] = {}
        for pair in self._pairs(e):
            if pair.server is not None and pair.server not in added:
                own = self._activities.add(
                    f"{e} add {pair.server}",
                    cpu={pair.server: own_s},
                    lane=pair.server,
                    after=after[pair.server],
                )
                added[pair.server] = [own]
            moved = self._activities.send(
                f"{e} {pair.worker}→{pair.server}",
                cpu=_both(
                    (pair.worker, (pair.n_bytes * cost.send_s + n_messages * cost.client_s) * pair.n_servers),
                    (pair.server, pair.n_bytes * cost.receive_s * pair.n_workers),
                ),
                least_s=cost.latency_s,
                after=encoded[pair.worker],
                connection=(pair.worker, pair.server),
                out={pair.worker: pair.n_bytes * pair.n_servers},
                into={pair.server: pair.n_bytes * pair.n_workers},
            )
            if pair.server is None:
                continue
            added_s = (message_s + table_s + pair.n_bytes * add_s) * pair.n_workers
            added[pair.server].append(
                self._activities.add(
                    f"{e} add {pair.worker}→{pair.server}",
                    cpu={pair.server: added_s},
                    lane=pair.server,
                    after=[moved],
                )
            )
        return added

    def _encoded(self, e: Exchange, number: int, after: Sequence[str], seconds: float = 0.0) -> Sequence[str]:
        """Work on values before they are sent: encoding, beside some seconds of another kind."""
        if e.flow.compressor is not None:
            codec = self._costs.codecs[e.flow.compressor.name]
            seconds += len(e.flow.variables) * codec.variable_s + e.flow.value_bytes * codec.value_s
        if not seconds:
            return after
        return [self._activities.add(f"{e} encode {number}", cpu={number: seconds}, lane=number, after=after)]

    def _collective(self, e: Exchange, after: PerClass, ends: PerClass) -> dict[int, list[str]]:
        """An exchange of all members, which hand their values over, and take the result back."""
        flow, cost = e.flow, self._costs.collectives[e.flow.transport]
        bytes_per_row = self._bytes_per_row(flow)
        if bytes_per_row is None:
            byte_s, variable_s, rows_s = cost.byte_s(flow.op), cost.variable_s, 0.0
        else:
            byte_s, variable_s = cost.rows_s, cost.table_s
            rows_s = flow.value_bytes / bytes_per_row * cost.row_s
        give_s = cost.message_s * flow.n_messages * flow.n_rounds + len(flow.variables) * variable_s + rows_s
        take_s = len(flow.variables) * variable_s + flow.n_members * rows_s
        sent, received = flow.links.sent() * flow.period, flow.links.received() * flow.period
        handed_over = [
            self._activities.add(
                f"{e} give {number}",
                cpu={number: give_s},
                lane=number,
                after=self._encoded(e, number, after[number]),
            )
            for number in self._classes.members
        ]
        name = f"{e} move"
        n_hops = _n_hops(flow)
        hops_s = n_hops * flow.n_messages * cost.hop_s
        cpu = {number: float(sent[task]) * byte_s + hops_s for number, task in self._first.items()}
        latency_s = n_hops * cost.round_s
        out = {number: float(sent[task]) for number, task in self._first.items()}
        into = {number: float(received[task]) for number, task in self._first.items()}
        if flow.transport == "tcp":
            # The workers' own ring carries out one exchange after the other, in small pieces.
            turn = self._activities.in_turn("ring", name, handed_over)
            moved = self._activities.add(name, cpu=cpu, least_s=latency_s, after=turn, out=out, into=into)
        else:
            moved = self._activities.send(
                name, cpu=cpu, least_s=latency_s, after=handed_over, out=out, into=into
            )
        return {
            number: [
                self._activities.add(
                    f"{e} take {number}",
                    cpu={number: take_s},
                    lane=number,
                    after=[moved, *ends.get(number, ())],
                )
            ]
            for number in self._classes.members
        }


def _both(*ends: tuple[int | None, float]) -> dict[int | None, float]:
    """Processor time of a sender and a receiver, which may be of one class."""
    cpu: dict[int | None, float] = defaultdict(float)
    for number, seconds in ends:
        cpu[number] += seconds
    return cpu


def _n_hops(flow: Flow) -> int:
    """Hops of a collective's values from one member to the next, in all of its rounds."""
    n = flow.n_members
    is_swapped = flow.op == "sum" and n == 2 and flow.transport == "tcp" and flow.n_bytes <= SWAPPED_BYTES
    return flow.n_rounds * (1 if is_swapped else (n - 1) * (2 if flow.op == "sum" else 1))
