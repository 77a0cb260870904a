"""Model of a step: a plan's exchanges and a profile of the computation, as activities of a simulation.

Tasks that are alike are simulated once: each class of tasks has one core, one link and one lane, the thread
that runs its operations one after the other. A server's thread runs the requests of other tasks between its
own operations, so that they wait for each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.prediction.costs import Costs
from harness.prediction.profile import StepProfile
from harness.prediction.simulation import Activity, Timeline, simulate
from strategies.plan.exchanges.collectives import SWAPPED_BYTES
from strategies.plan.exchanges.flow import Flow
from strategies.plan.links import Links, ServerLinks
from strategies.plan.partitions import alike_parts
from strategies.plan.payload import ID_BYTES, row_bytes
from strategies.plan.schema import Plan, StepSummary
from strategies.planner import topology_of

_MOST_CLASSES = 8
"""Most classes of tasks that are simulated."""
_SHORT = 0.01
"""Part of the computation below which two moments of it count as one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """Machines of the workers.

    Attributes:
        cores: cores of each worker.
        shared_cores: cores that all workers share; None if each has its own.
        link_bytes_per_s: rate of each worker's link in one direction; None without a limit.
        link_burst_bytes: bytes that pass at once after a pause, as through a token bucket.
        waits_s: time that each worker waits before its step; empty if none waits.
    """

    cores: float = 1.0
    shared_cores: float | None = None
    link_bytes_per_s: float | None = None
    link_burst_bytes: float = 0.0
    waits_s: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedStep:
    """A step under a plan, with everything that its time depends on except costs and machines.

    Attributes:
        flows: exchanges of the plan.
        profiles: examples of a task → profile of its step without communication.
    """

    plan: Plan
    step: StepSummary
    flows: Sequence[Flow]
    profiles: Mapping[int, StepProfile]

    @property
    def period(self) -> int:
        """Steps after which every periodic exchange has happened."""
        return max((flow.period for flow in self.flows), default=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedStep:
    """Result of the simulation of a step.

    Attributes:
        step_s: mean duration in seconds.
        busy_s: resource → seconds per step in which the step's needs would use it up.
        members: class of tasks → its tasks.
        timeline: a step with all periodic exchanges.
    """

    step_s: float
    busy_s: Mapping[str, float]
    members: Mapping[int, Sequence[int]]
    timeline: Timeline


def simulate_step(planned: PlannedStep, costs: Costs, machines: Machines) -> SimulatedStep:
    """Simulate a step of a plan; exchanges of every few steps count with their share."""
    model = _StepModel(planned, costs, machines)
    rates = {core(number): machines.cores for number in model.members}
    if machines.shared_cores is not None:
        rates[SHARED_CORES] = machines.shared_cores
    buckets: dict[str, float] = {}
    if machines.link_bytes_per_s is not None:
        ways = [way(number) for number in model.members for way in (link_out, link_in)]
        rates |= dict.fromkeys(ways, machines.link_bytes_per_s)
        buckets = dict.fromkeys(ways, machines.link_burst_bytes) if machines.link_burst_bytes else {}
    timeline = _steady(model.activities(), rates, buckets)
    step_s, busy_s = timeline.end_s, dict(timeline.busy_s)
    if planned.period > 1:
        usual = _steady(model.activities(with_periodic=False), rates, buckets)
        step_s = usual.end_s + (step_s - usual.end_s) / planned.period
        for name, seconds in busy_s.items():
            usual_s = usual.busy_s.get(name, 0.0)
            busy_s[name] = usual_s + (seconds - usual_s) / planned.period
    limited = SimulatedStep(step_s=step_s, busy_s=busy_s, members=model.members, timeline=timeline)
    if machines.link_bytes_per_s is not None and any(flow.transport == "grpc" for flow in planned.flows):
        # A limit can change which server computes first. It makes no step faster.
        unlimited = simulate_step(planned, costs, replace(machines, link_bytes_per_s=None))
        return max(limited, unlimited, key=lambda step: step.step_s)
    return limited


_MOST_STEPS = 20
"""Most steps until the tokens of links no longer change."""
_FEW_TOKENS = 0.01
"""Part of a bucket by which its tokens may still change."""


def _steady(
    activities: Sequence[Activity], rates: Mapping[str, float], buckets: Mapping[str, float]
) -> Timeline:
    """A step after many others, which left their tokens."""
    timeline = simulate(activities, rates, buckets=buckets)
    for _ in range(_MOST_STEPS if buckets else 0):
        before = timeline.tokens
        timeline = simulate(activities, rates, buckets=buckets, tokens=before)
        if all(abs(timeline.tokens[name] - n) <= _FEW_TOKENS * buckets[name] for name, n in before.items()):
            break
    return timeline


def processor_s(planned: PlannedStep, costs: Costs) -> list[float]:
    """Processor time of each task per step, which is linear in the costs."""
    model = _StepModel(planned, costs, Machines())
    share = 1.0 / planned.period
    totals: dict[str, float] = defaultdict(float)
    for with_periodic, weight in ((True, share), (False, 1.0 - share)):
        if weight:
            for activity in model.activities(with_periodic=with_periodic):
                for resource, amount in activity.needs.items():
                    totals[resource] += amount * weight
    by_task = {task: totals[core(number)] for number, tasks in model.members.items() for task in tasks}
    return [by_task[task] for task in range(len(by_task))]


SHARED_CORES = "shared cores"
"""Resource: cores that all workers share, besides the cores that each of them may use."""


def core(number: int) -> str:
    """Resource: the cores of a task of a class."""
    return f"core {number}"


def link_out(number: int) -> str:
    """Resource: the link of a task of a class, from it to others."""
    return f"out {number}"


def link_in(number: int) -> str:
    """Resource: the link of a task of a class, from others to it."""
    return f"in {number}"


def _lane(number: int) -> str:
    return f"thread {number}"


_PerClass = Mapping[int, Sequence[str]]
"""Class of tasks → names of activities."""


@dataclass(frozen=True, slots=True)
class _Exchange:
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
        n_servers: servers of the class that each worker exchanges a message with; `n_workers` the reverse.
    """

    server: int | None
    worker: int
    n_bytes: float
    n_servers: int
    n_workers: int


class _StepModel:
    """Activities of a plan's step.

    Attributes:
        members: class → its tasks, the first of which represents it.
    """

    def __init__(self, planned: PlannedStep, costs: Costs, machines: Machines) -> None:
        self._planned = planned
        self._costs = costs
        self._topology = topology_of(planned.plan)
        self._waits_s = machines.waits_s or (0.0,) * self._topology.n_tasks
        self._shares_cores = machines.shared_cores is not None
        self._variable_of = {
            parts.name: node.variable for node in planned.plan.nodes for parts in alike_parts(node)
        }
        tables = {v.name for v in planned.step.variables if v.sparse}
        self._row_bytes = {n.variable: row_bytes(n) for n in planned.plan.nodes if n.variable in tables}
        self._alike = dict(enumerate(self._most_important(self._classes())))
        self.members = self._with_all_tasks()
        self._first = {number: tasks[0] for number, tasks in self._alike.items()}
        self._profiles = {number: self._profile(task) for number, task in self._first.items()}
        self._shares = self._update_shares()
        self._activities: list[Activity] = []
        self._last: dict[object, str] = {}
        self._pairs_of: dict[int, list[_Pair]] = {}
        self._ids: dict[tuple[str, int, int | None], str] = {}

    def activities(self, *, with_periodic: bool = True) -> Sequence[Activity]:
        """Activities of a step with, or without, the exchanges that happen every few steps."""
        self._activities, self._last, self._pairs_of, self._ids = [], {}, {}, {}
        flows = [flow for flow in self._planned.flows if with_periodic or flow.period == 1]
        exchanges = [_Exchange(number, flow) for number, flow in enumerate(flows)]
        served = any(e.is_served for e in exchanges)
        begun = self._begin(served=served)
        cuts = _Cuts(exchanges, next(iter(self._profiles.values())), self._variables)
        computed = self._compute(exchanges, cuts, begun)
        for e in exchanges:
            if e.is_read:
                self._exchanged(e, begun, {})
        arrived = self._gradients(exchanges, cuts, computed)
        updated = self._updates(arrived, served=served, computed=computed)
        for e in exchanges:
            if not e.is_read and e.flow.values != "gradients":
                after = {
                    number: self._after_updates(e, updated[number], computed[number]) for number in computed
                }
                ends = self._exchanged(e, after, {})
                if e.flow.values in ("new values", "averages"):
                    self._assign(e, ends)
        if served:
            self._release_workers(updated)
        return self._activities

    def _classes(self) -> list[list[int]]:
        """Classes of tasks that compute, serve and send alike."""
        n_tasks = self._topology.n_tasks
        columns = [np.array(self._topology.kinds().of_task), np.array(self._waits_s)]
        if self._shares_cores:
            columns.append(np.arange(n_tasks))
        for flow in self._planned.flows:
            columns += [np.round(flow.links.sent()), np.round(flow.links.received())]
            if isinstance(flow.links, ServerLinks):
                columns.append(np.isin(np.arange(n_tasks), flow.links.servers))
        members: dict[bytes, list[int]] = {}
        for task, figures in enumerate(np.column_stack(columns).astype(np.float64)):
            members.setdefault(figures.tobytes(), []).append(task)
        return list(members.values())

    def _most_important(self, classes: list[list[int]]) -> list[list[int]]:
        """The class of worker 0, the largest one, that with the longest wait, and the busiest."""
        if len(classes) <= _MOST_CLASSES:
            return classes
        ends = [flow.links.sent() + flow.links.received() for flow in self._planned.flows]
        n_bytes = np.sum(ends, axis=0)
        largest = max(classes, key=len)
        busiest = sorted(classes, key=lambda tasks: float(n_bytes[tasks[0]]), reverse=True)
        first = next(tasks for tasks in classes if 0 in tasks)
        slowest = max(classes, key=lambda tasks: self._waits_s[tasks[0]])
        by_importance = {tasks[0]: tasks for tasks in (largest, first, slowest, *busiest)}
        return sorted(list(by_importance.values())[:_MOST_CLASSES])

    def _with_all_tasks(self) -> dict[int, list[int]]:
        """Classes with all tasks: those that are not simulated count to the largest class.

        They compute and send as that class does; those that are servers answer at once.
        """
        simulated = {task for tasks in self._alike.values() for task in tasks}
        others = [task for task in range(self._topology.n_tasks) if task not in simulated]
        largest = max(self._alike, key=lambda number: len(self._alike[number]))
        return {
            number: [*tasks, *others] if number == largest else tasks for number, tasks in self._alike.items()
        }

    def _profile(self, task: int) -> StepProfile:
        examples = sum(replica.examples for replica in self._topology.local_replicas(task))
        return self._planned.profiles[examples]

    def _variables(self, flow: Flow) -> set[str]:
        return {self._variable_of.get(name, name) for name in flow.variables}

    def _bytes_per_row(self, flow: Flow) -> float | None:
        """Mean bytes of a row, with its id where that is sent too; None if values are not rows of tables."""
        crosses_whole = flow.op in ("sum", "scatter") or (
            flow.transport != "grpc" and flow.values != "gradients"
        )
        sizes = [self._row_bytes[name] for name in self._variables(flow) if name in self._row_bytes]
        if crosses_whole or not sizes:
            return None
        return sum(sizes) / len(sizes) + (0 if flow.op == "pull" else ID_BYTES)

    def _update_shares(self) -> dict[int, dict[str, float]]:
        """Class → variable → part of its update that a task of the class runs."""
        slots = {v.name for v in self._planned.step.variables if v.kind == "slot"}
        shares: dict[int, dict[str, float]] = {number: {} for number in self.members}
        task_of_rank = [replica.task for replica in self._topology.replicas()]
        for node in self._planned.plan.nodes:
            for parts in () if node.variable in slots else alike_parts(node):
                owners = () if node.sparse and not node.gathered else parts.owners
                places = parts.destinations or tuple(task_of_rank[rank] for rank in owners)
                for number, task in self._first.items():
                    n = places.count(task) if places else parts.n
                    if n:
                        share = n * parts.node.bytes / max(node.bytes, 1)
                        shares[number][node.variable] = shares[number].get(node.variable, 0.0) + share
        return shares

    def _add(
        self,
        name: str,
        *,
        cpu: Mapping[int | None, float] | Mapping[int, float] | None = None,
        lane: int | None = None,
        least_s: float = 0.0,
        after: Iterable[str] = (),
        out: Mapping[int | None, float] | Mapping[int, float] | None = None,
        into: Mapping[int | None, float] | Mapping[int, float] | None = None,
    ) -> str:
        """Add an activity.

        Args:
            cpu: class → processor time of each of its tasks. out, into: class → bytes on its links. Those of
                tasks that are not simulated (None) do not count.
            least_s: latency, in which neither processors nor links are used.
        """
        cpu = cpu or {}
        needs = {
            resource(number): amount
            for resource, amounts in ((core, cpu), (link_out, out or {}), (link_in, into or {}))
            for number, amount in amounts.items()
            if number is not None
        }
        if cpu and self._shares_cores:
            needs[SHARED_CORES] = sum(
                seconds * len(self.members[number]) for number, seconds in cpu.items() if number is not None
            )
        before = tuple(after)
        if least_s and needs:
            self._activities.append(Activity(name=f"{name}, latency", least_s=least_s, after=before))
            before, least_s = (f"{name}, latency",), 0.0
        # A thread uses one core at most.
        alone_s = max((seconds for number, seconds in cpu.items() if number is not None), default=0.0)
        self._activities.append(
            Activity(
                name=name,
                needs=needs,
                least_s=least_s + alone_s,
                after=before,
                lane=None if lane is None else _lane(lane),
            )
        )
        return name

    def _begin(self, *, served: bool) -> dict[int, list[str]]:
        """Waits before a step, and work that its exchanges cause once: sessions, and variables in parts."""
        transports = {flow.transport for flow in self._planned.flows} - {"grpc"}
        seconds = sum(self._costs.collectives[name].step_s for name in transports)
        seconds += self._costs.servers.step_s if served else 0.0
        kinds = {v.name: v.kind for v in self._planned.step.variables}
        for node in self._planned.plan.nodes:
            if node.partition is not None and kinds[node.variable] == "trainable":
                n_parts, cut = len(node.partition.sizes), self._costs.cut
                dense_s = n_parts * cut.variable_s + node.bytes * cut.value_s
                seconds += n_parts * self._costs.cut_table_s if node.sparse else dense_s
        begun: dict[int, list[str]] = {number: [] for number in self.members}
        for number, task in self._first.items():
            if self._waits_s[task]:
                begun[number] = [self._add(f"wait {number}", least_s=self._waits_s[task])]
            if seconds:
                after = begun[number]
                begun[number] = [
                    self._add(f"begin {number}", cpu={number: seconds}, lane=number, after=after)
                ]
        return begun

    def _compute(self, exchanges: Sequence[_Exchange], cuts: _Cuts, begun: _PerClass) -> dict[int, list[str]]:
        """Forward and backward computation in parts, which wait for the values that they use."""
        computed: dict[int, list[str]] = {}
        reads: dict[int, list[_Exchange]] = defaultdict(list)
        for e in exchanges:
            if e.is_read:
                reads[cuts.first_after(e)].append(e)
        for number, profile in self._profiles.items():
            names: list[str] = []
            for part in range(cuts.n):
                after = [*(names[-1:] or begun[number])]
                for e in reads[part]:
                    after += self._arrivals(e, number)
                seconds = cuts.length(part) * profile.compute_s
                names.append(
                    self._add(f"compute {number}.{part}", cpu={number: seconds}, lane=number, after=after)
                )
            computed[number] = names
        return computed

    def _arrivals(self, e: _Exchange, number: int) -> list[str]:
        """Activities after which a task has the values of an exchange."""
        if not e.is_served:
            return [f"{e} take {number}"]
        if e.flow.values == "ids":
            return []
        return [f"{e} {pair.server}→{number}" for pair in self._pairs(e) if pair.worker == number]

    def _pairs(self, e: _Exchange) -> Sequence[_Pair]:
        if e.number not in self._pairs_of:
            self._pairs_of[e.number] = list(self._exchanging(e.flow.links))
        return self._pairs_of[e.number]

    def _exchanging(self, links: Links) -> Iterator[_Pair]:
        assert isinstance(links, ServerLinks)
        rows = {int(server): row for row, server in enumerate(links.servers)}
        simulated = {task for tasks in self._alike.values() for task in tasks}
        apart = [row for server, row in rows.items() if server not in simulated]
        for worker, working in self.members.items():
            kind = links.kinds.of_task[working[0]]
            for server, serving in self._alike.items():
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

    def _exchanged(self, e: _Exchange, after: _PerClass, ends: _PerClass) -> dict[int, list[str]]:
        """Activities of an exchange.

        Args:
            after: class → activities before its values can be sent.
            ends: class → further activities before the result of a collective is waited for.
        Returns:
            Class → activities after which it has the result.
        """
        if not e.is_served:
            return self._collective(e, after, ends)
        if e.flow.values == "ids":
            return self._send_ids(e, after)
        return self._pulls(e, after) if e.flow.op == "pull" else self._pushes(e, after)

    def _request(self, worker: int, after: _PerClass) -> str:
        """Request of a worker for the values of a step, which all leave together."""
        name = f"ask {worker}"
        if name not in self._last:
            self._last[name] = self._add(name, least_s=self._costs.servers.request_s, after=after[worker])
        return name

    def _send_ids(self, e: _Exchange, after: _PerClass) -> dict[int, list[str]]:
        """Ids that servers must have before they look up rows."""
        cost = self._costs.servers
        for pair in self._pairs(e):
            sent = self._add(
                f"{e} {pair.worker}→{pair.server}",
                cpu={pair.worker: e.flow.n_messages * e.flow.n_rounds * cost.client_s * pair.n_servers},
                least_s=max(cost.ids_s, cost.latency_s),
                after=[self._request(pair.worker, after)],
                out={pair.worker: pair.n_bytes * pair.n_servers},
                into={pair.server: pair.n_bytes * pair.n_workers},
            )
            self._ids |= {(name, pair.worker, pair.server): sent for name in e.flow.variables}
        return {}

    def _pulls(self, e: _Exchange, after: _PerClass) -> dict[int, list[str]]:
        cost, flow = self._costs.servers, e.flow
        bytes_per_row = self._bytes_per_row(flow)
        n_messages = flow.n_messages * flow.n_rounds
        message_s = n_messages * cost.message_s + len(flow.variables) * cost.variable_s
        for pair in self._pairs(e):
            names = f"{pair.worker}→{pair.server}"
            request = self._request(pair.worker, after)
            ids = (self._ids.get((name, pair.worker, pair.server)) for name in flow.variables)
            read_s = message_s + (cost.row_s * pair.n_bytes / bytes_per_row if bytes_per_row else 0.0)
            read = self._add(
                f"{e} read {names}",
                cpu={pair.server: read_s * pair.n_workers},
                lane=pair.server,
                after=[sent for sent in ids if sent is not None] or [request],
            )
            received_s = pair.n_bytes * cost.receive_s + n_messages * cost.client_s
            self._send(
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

    def _pushes(self, e: _Exchange, after: _PerClass) -> dict[int, list[str]]:
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
        encoded = {number: self._encoded(e, number, after[number], combined_s) for number in self.members}
        added: dict[int, list[str]] = {}
        for pair in self._pairs(e):
            if pair.server is not None and pair.server not in added:
                own = self._add(
                    f"{e} add {pair.server}",
                    cpu={pair.server: own_s},
                    lane=pair.server,
                    after=after[pair.server],
                )
                added[pair.server] = [own]
            moved = self._send(
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
                self._add(
                    f"{e} add {pair.worker}→{pair.server}",
                    cpu={pair.server: added_s},
                    lane=pair.server,
                    after=[moved],
                )
            )
        return added

    def _send(
        self,
        name: str,
        *,
        cpu: Mapping[int | None, float] | Mapping[int, float],
        least_s: float,
        after: Sequence[str],
        connection: object | None = None,
        out: Mapping[int | None, float] | Mapping[int, float],
        into: Mapping[int | None, float] | Mapping[int, float],
    ) -> str:
        """Copies of a whole tensor, in turn with others of a connection, and then its bytes on the way.

        Tensors on the way share the link evenly, as the streams of one gRPC connection do.
        """
        copy = f"{name} copy"
        before = after if connection is None else self._in_turn(connection, copy, after)
        self._add(copy, cpu=cpu, after=before)
        return self._add(name, least_s=least_s, after=[copy], out=out, into=into)

    def _in_turn(self, connection: object, name: str, after: Sequence[str]) -> list[str]:
        """Activities before one, and the latest one of its connection, which carries one at a time."""
        before = self._last.get(connection)
        self._last[connection] = name
        return [*after, *([] if before is None else [before])]

    def _encoded(
        self, e: _Exchange, number: int, after: Sequence[str], seconds: float = 0.0
    ) -> Sequence[str]:
        """Work on values before they are sent: encoding, beside some seconds of another kind."""
        if e.flow.compressor is not None:
            codec = self._costs.codecs[e.flow.compressor.name]
            seconds += len(e.flow.variables) * codec.variable_s + e.flow.value_bytes * codec.value_s
        if not seconds:
            return after
        return [self._add(f"{e} encode {number}", cpu={number: seconds}, lane=number, after=after)]

    def _collective(self, e: _Exchange, after: _PerClass, ends: _PerClass) -> dict[int, list[str]]:
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
            self._add(
                f"{e} give {number}",
                cpu={number: give_s},
                lane=number,
                after=self._encoded(e, number, after[number]),
            )
            for number in self.members
        ]
        name = f"{e} move"
        cpu = {number: float(sent[task]) * byte_s for number, task in self._first.items()}
        latency_s = _latency_s(flow, cost.round_s)
        out = {number: float(sent[task]) for number, task in self._first.items()}
        into = {number: float(received[task]) for number, task in self._first.items()}
        if flow.transport == "tcp":
            # The workers' own ring carries out one exchange after the other, in small pieces.
            turn = self._in_turn("ring", name, handed_over)
            moved = self._add(name, cpu=cpu, least_s=latency_s, after=turn, out=out, into=into)
        else:
            moved = self._send(name, cpu=cpu, least_s=latency_s, after=handed_over, out=out, into=into)
        return {
            number: [
                self._add(
                    f"{e} take {number}",
                    cpu={number: take_s},
                    lane=number,
                    after=[moved, *ends.get(number, ())],
                )
            ]
            for number in self.members
        }

    def _gradients(
        self, exchanges: Sequence[_Exchange], cuts: _Cuts, computed: _PerClass
    ) -> dict[int, dict[str, list[str]]]:
        """Exchanges of gradients, in the order in which these are ready.

        Returns:
            Class → variable → activities after which the class can update it.
        """
        arrived: dict[int, dict[str, list[str]]] = {number: defaultdict(list) for number in self.members}
        # No result is waited for until all gradients are handed over.
        ends = {number: names[-1:] for number, names in computed.items()}
        for e in sorted((e for e in exchanges if e.flow.values == "gradients"), key=cuts.ready):
            after = {number: [names[cuts.last_before(e)]] for number, names in computed.items()}
            for number, names in self._exchanged(e, after, ends).items():
                for variable in self._variables(e.flow):
                    arrived[number][variable] += names
        return arrived

    def _updates(
        self, arrived: Mapping[int, Mapping[str, Sequence[str]]], *, served: bool, computed: _PerClass
    ) -> dict[int, dict[str, str]]:
        """Updates: a class's variables that wait for the same exchanges are updated together.

        Returns:
            Class → variable → its update.
        """
        trained = {name for own in self._shares.values() for name in own}
        updated: dict[int, dict[str, str]] = {}
        for number, profile in self._profiles.items():
            together: dict[tuple[str, ...], list[str]] = defaultdict(list)
            for name in self._shares[number]:
                together[tuple(arrived[number].get(name, computed[number][-1:]))].append(name)
            alone_s = sum(profile.variables[name].update_s for name in trained & profile.variables.keys())
            left_s = max(0.0, profile.update_s - alone_s)
            own: dict[str, str] = {}
            for after, names in together.items():
                seconds, left_s = left_s, 0.0
                for name in names:
                    update_s = profile.variables[name].update_s if name in profile.variables else 0.0
                    seconds += update_s * self._shares[number][name]
                    seconds += self._costs.servers.update_s if served and name in arrived[number] else 0.0
                update = self._add(
                    f"update {number}.{len(own)}", cpu={number: seconds}, lane=number, after=after
                )
                own |= dict.fromkeys(names, update)
            updated[number] = own
        return updated

    def _after_updates(self, e: _Exchange, updated: Mapping[str, str], computed: Sequence[str]) -> list[str]:
        after = {updated[name]: None for name in sorted(self._variables(e.flow)) if name in updated}
        return list(after) or list(computed[-1:])

    def _assign(self, e: _Exchange, ends: _PerClass) -> None:
        received = e.flow.links.received()
        for number, after in ends.items():
            # A sum passes twice, in parts; each value is stored once.
            n_bytes = e.flow.value_bytes if e.flow.op == "sum" else float(received[self._first[number]])
            seconds = n_bytes * self._costs.assign_s
            self._add(f"{e} assign {number}", cpu={number: seconds}, lane=number, after=after)

    def _release_workers(self, updated: Mapping[int, Mapping[str, str]]) -> None:
        """Worker 0 tells all others that the step is over."""
        cost, n_others = self._costs.servers, self._topology.n_tasks - 1
        after = dict.fromkeys(update for own in updated.values() for update in own.values())
        first = next(number for number, tasks in self.members.items() if 0 in tasks)
        self._add(
            "release", cpu={first: cost.token_s * n_others}, least_s=cost.latency_s, lane=first, after=after
        )


def _both(*ends: tuple[int | None, float]) -> dict[int | None, float]:
    """Processor time of a sender and a receiver, which may be of one class."""
    cpu: dict[int | None, float] = defaultdict(float)
    for number, seconds in ends:
        cpu[number] += seconds
    return cpu


def _latency_s(flow: Flow, round_s: float) -> float:
    """Time of a collective's rounds, without the bytes in them."""
    n = flow.n_members
    is_swapped = flow.op == "sum" and n == 2 and flow.transport == "tcp" and flow.n_bytes <= SWAPPED_BYTES
    n_hops = 1 if is_swapped else (n - 1) * (2 if flow.op == "sum" else 1)
    return round_s * n_hops * flow.n_rounds


class _Cuts:
    """Parts of the computation between the moments at which values are used or gradients are ready."""

    def __init__(
        self,
        exchanges: Sequence[_Exchange],
        profile: StepProfile,
        variables: Callable[[Flow], set[str]],
    ) -> None:
        self._moments: dict[int, float] = {}
        for e in exchanges:
            times = [profile.variables[name] for name in variables(e.flow) if name in profile.variables]
            if e.is_read:
                needed_s = [t.needed_s for t in times if t.needed_s is not None]
                moment_s = min(needed_s, default=0.0)
            else:
                ready_s = [t.ready_s for t in times if t.ready_s is not None]
                moment_s = max(ready_s, default=profile.compute_s)
            self._moments[e.number] = moment_s / profile.compute_s if profile.compute_s else 1.0
        self._cuts = [0.0]
        for moment in sorted(self._moments.values()):
            if moment > self._cuts[-1] + _SHORT and moment < 1.0 - _SHORT:
                self._cuts.append(moment)
        self._cuts.append(1.0)
        starts, ends = np.array(self._cuts[:-1]), np.array(self._cuts[1:])
        self._first_after = {
            number: int(np.flatnonzero(starts <= moment + _SHORT)[-1])
            for number, moment in self._moments.items()
        }
        self._last_before = {
            number: int(np.flatnonzero(ends >= moment - _SHORT)[0])
            for number, moment in self._moments.items()
        }

    @property
    def n(self) -> int:
        return len(self._cuts) - 1

    def length(self, part: int) -> float:
        """Length of a part, as a part of the whole computation."""
        return self._cuts[part + 1] - self._cuts[part]

    def ready(self, e: _Exchange) -> float:
        return self._moments[e.number]

    def first_after(self, e: _Exchange) -> int:
        """First part of the computation that uses an exchange's values."""
        return self._first_after[e.number]

    def last_before(self, e: _Exchange) -> int:
        """Part of the computation at whose end an exchange's values are known."""
        return self._last_before[e.number]
