"""Model of a step: a plan's exchanges and a profile of the computation, as activities of a simulation.

Tasks that are alike are simulated once: each class of tasks has one core, one link and one lane, the thread
that runs its operations one after the other. A server's thread runs the requests of other tasks between its
own operations, so that they wait for each other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from harness.prediction.costs import Costs
from harness.prediction.exchange_activities import Exchange, ExchangeActivities
from harness.prediction.profile import StepProfile
from harness.prediction.simulation import Activity, Timeline, simulate
from harness.prediction.step_activities import (
    COMPUTING,
    PerClass,
    StepActivities,
    core,
    link_in,
    link_out,
    shared_core,
)
from harness.prediction.task_classes import TaskClasses, task_classes
from strategies.plan.exchanges.flow import Flow
from strategies.plan.partitions import alike_parts
from strategies.plan.schema import Plan, StepSummary, TaskTraffic
from strategies.plan.traffic import traffic_of
from strategies.planner import topology_of

_SHORT = 0.01
"""Part of the computation below which two moments of it count as one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """Machines of the workers.

    Attributes:
        cores: cores of each worker.
        n_shared: number of core sets, of `cores` each; worker i runs on set i mod n_shared. None if each has
            its own.
        link_bytes_per_s: rate of each worker's link in one direction; None without a limit.
        link_burst_bytes: bytes that pass at once after a pause, as through a token bucket.
        waits_s: time that each worker waits before its step; empty if none waits.
    """

    cores: float = 1.0
    n_shared: int | None = None
    link_bytes_per_s: float | None = None
    link_burst_bytes: float = 0.0
    waits_s: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedStep:
    """A step under a plan, with everything that its time depends on except costs and machines.

    Attributes:
        flows: exchanges of the plan, with the measured rows of its tables.
        profiles: examples of a task → profile of its step without communication.
    """

    plan: Plan
    step: StepSummary
    flows: Sequence[Flow]
    profiles: Mapping[int, StepProfile]

    @property
    def traffic(self) -> Sequence[TaskTraffic]:
        """Bytes of the exchanges by task; the plan's own are an upper bound."""
        return traffic_of(self.flows, topology_of(self.plan).kinds())

    @property
    def period(self) -> int:
        """Steps after which every periodic exchange has happened."""
        return max((flow.period for flow in self.flows), default=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedStep:
    """Result of the simulation of a step.

    Attributes:
        step_s: typical duration in seconds, with the wait for the slowest exchanges; mean over a period.
        busy_s: resource → seconds per step in which the step's needs would use it up.
        members: class of tasks → its tasks.
        timeline: a step with all periodic exchanges, without that wait.
    """

    step_s: float
    busy_s: Mapping[str, float]
    members: Mapping[int, Sequence[int]]
    timeline: Timeline


def simulate_step(planned: PlannedStep, costs: Costs, machines: Machines) -> SimulatedStep:
    """Simulate a step of a plan; exchanges of every few steps count with their share."""
    classes = _classes(planned, machines)
    rates = {core(number): machines.cores for number in classes.members}
    rates |= {shared_core(number): machines.cores for number in range(machines.n_shared or 0)}
    buckets: dict[str, float] = {}
    if machines.link_bytes_per_s is not None:
        ways = [way(number) for number in classes.members for way in (link_out, link_in)]
        rates |= dict.fromkeys(ways, machines.link_bytes_per_s)
        buckets = dict.fromkeys(ways, machines.link_burst_bytes) if machines.link_burst_bytes else {}
    activities = _activities(planned, costs, machines, classes)
    timeline = _steady(activities, rates, buckets)
    step_s, busy_s, exchanging_s = timeline.end_s, timeline.busy_s, _used_by_exchanges(activities)
    if planned.period > 1:
        activities = _activities(planned, costs, machines, classes, with_periodic=False)
        usual, share = _steady(activities, rates, buckets), 1 / planned.period
        step_s = usual.end_s + (step_s - usual.end_s) * share
        busy_s = _weighted(busy_s, usual.busy_s, share)
        exchanging_s = _weighted(exchanging_s, _used_by_exchanges(activities), share)
    own_s = [(exchanging_s.get(core(n), 0.0), len(tasks)) for n, tasks in classes.members.items()]
    step_s += _wait_for_slowest(own_s, costs.exchange_variation)
    limited = SimulatedStep(step_s=step_s, busy_s=busy_s, members=classes.members, timeline=timeline)
    if machines.link_bytes_per_s is not None and any(flow.transport == "grpc" for flow in planned.flows):
        # A limit can change which server computes first. It makes no step faster.
        unlimited = simulate_step(planned, costs, replace(machines, link_bytes_per_s=None))
        return max(limited, unlimited, key=lambda step: step.step_s)
    return limited


def _weighted(
    whole_s: Mapping[str, float], usual_s: Mapping[str, float], share: float
) -> Mapping[str, float]:
    """Mean use of each resource, if a share of the steps has all exchanges."""
    return {
        name: usual_s.get(name, 0.0) + (seconds - usual_s.get(name, 0.0)) * share
        for name, seconds in whole_s.items()
    }


def _used(activities: Iterable[Activity]) -> Mapping[str, float]:
    """Resource → sum of the needs of activities."""
    totals: dict[str, float] = defaultdict(float)
    for activity in activities:
        for resource, amount in activity.needs.items():
            totals[resource] += amount
    return totals


def _used_by_exchanges(activities: Iterable[Activity]) -> Mapping[str, float]:
    return _used(a for a in activities if a.name.partition(" ")[0] not in COMPUTING)


_HALVINGS = 40
"""Halvings of an interval until its length does not matter."""


def _wait_for_slowest(groups: Sequence[tuple[float, int]], variation: float) -> float:
    """Time of the slowest task, less the longest mean time.

    Times are normally distributed. The slowest task's time is the median of the largest of them.

    Args:
        groups: mean time and number of tasks that are alike.
        variation: standard deviation ÷ mean.
    """
    longest_s = max(mean_s for mean_s, _ in groups)
    varied = [(mean_s, variation * mean_s, n) for mean_s, n in groups if variation * mean_s > 0]
    if not varied:
        return 0.0
    low_s, high_s = longest_s, longest_s * (1 + variation * slowest(sum(n for *_, n in varied)))
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2
        # At the longest mean or above, no probability is below a half.
        logs = (n * math.log(NormalDist(mean_s, sd_s).cdf(middle_s)) for mean_s, sd_s, n in varied)
        if sum(logs) < math.log(0.5):
            low_s = middle_s
        else:
            high_s = middle_s
    return low_s - longest_s


def slowest(n_workers: int) -> float:
    """Median of the largest of n values of the standard normal distribution: Φ⁻¹(0.5^(1/n))."""
    return NormalDist().inv_cdf(0.5 ** (1 / n_workers))


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
    machines = Machines()
    classes = _classes(planned, machines)
    totals = _used(_activities(planned, costs, machines, classes))
    if planned.period > 1:
        usual = _used(_activities(planned, costs, machines, classes, with_periodic=False))
        totals = _weighted(totals, usual, 1 / planned.period)
    by_task = {
        task: totals.get(core(number), 0.0) for number, tasks in classes.members.items() for task in tasks
    }
    return [by_task[task] for task in range(len(by_task))]


def _waits_s(planned: PlannedStep, machines: Machines) -> Sequence[float]:
    return machines.waits_s or (0.0,) * len(planned.plan.replicas_per_task)


def _classes(planned: PlannedStep, machines: Machines) -> TaskClasses:
    return task_classes(
        topology_of(planned.plan),
        planned.flows,
        _waits_s(planned, machines),
        n_shared=machines.n_shared,
    )


def _activities(
    planned: PlannedStep,
    costs: Costs,
    machines: Machines,
    classes: TaskClasses,
    *,
    with_periodic: bool = True,
) -> Sequence[Activity]:
    """Activities of a step with, or without, the exchanges that happen every few steps."""
    return _Step(planned, costs, machines, classes, with_periodic=with_periodic).build()


class _Step:
    """Builder of the activities of a step."""

    def __init__(
        self,
        planned: PlannedStep,
        costs: Costs,
        machines: Machines,
        classes: TaskClasses,
        *,
        with_periodic: bool,
    ) -> None:
        self._planned = planned
        self._costs = costs
        self._topology = topology_of(planned.plan)
        self._waits_s = _waits_s(planned, machines)
        self._members = classes.members
        self._first = classes.first
        self._profiles = {number: self._profile(task) for number, task in self._first.items()}
        self._shares = self._update_shares()
        flows = [flow for flow in planned.flows if with_periodic or flow.period == 1]
        self._exchanges = [Exchange(number, flow) for number, flow in enumerate(flows)]
        self._is_served = any(e.is_served for e in self._exchanges)
        self._activities = StepActivities(classes.members, n_shared=machines.n_shared)
        self._exchanging = ExchangeActivities(planned.plan, planned.step, classes, costs, self._activities)

    def build(self) -> Sequence[Activity]:
        """Add all activities, once."""
        begun = self._begin()
        cuts = _Cuts(self._exchanges, next(iter(self._profiles.values())), self._exchanging.variables)
        computed = self._compute(cuts, begun)
        for e in self._exchanges:
            if e.is_read:
                self._exchanging.exchanged(e, begun, {})
        arrived = self._gradients(cuts, computed)
        updated = self._updates(arrived, computed)
        for e in self._exchanges:
            if not e.is_read and e.flow.values != "gradients":
                after = {
                    number: self._after_updates(e, updated[number], computed[number]) for number in computed
                }
                ends = self._exchanging.exchanged(e, after, {})
                if e.flow.values in ("new values", "averages"):
                    self._assign(e, ends)
        if self._is_served:
            self._release_workers(updated)
        return self._activities.added

    def _profile(self, task: int) -> StepProfile:
        examples = sum(replica.examples for replica in self._topology.local_replicas(task))
        return self._planned.profiles[examples]

    def _update_shares(self) -> dict[int, dict[str, float]]:
        """Class → variable → part of its update that a task of the class runs."""
        slots = {v.name for v in self._planned.step.variables if v.kind == "slot"}
        shares: dict[int, dict[str, float]] = {number: {} for number in self._members}
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

    def _begin(self) -> dict[int, list[str]]:
        """Waits before a step, and work that its exchanges cause once: sessions, and variables in parts."""
        transports = {flow.transport for flow in self._planned.flows} - {"grpc"}
        seconds = sum(self._costs.collectives[name].step_s for name in transports)
        seconds += self._costs.servers.step_s if self._is_served else 0.0
        kinds = {v.name: v.kind for v in self._planned.step.variables}
        for node in self._planned.plan.nodes:
            if node.partition is not None and kinds[node.variable] == "trainable":
                n_parts, cut = len(node.partition.sizes), self._costs.cut
                dense_s = n_parts * cut.variable_s + node.bytes * cut.value_s
                seconds += n_parts * self._costs.cut_table_s if node.sparse else dense_s
        begun: dict[int, list[str]] = {number: [] for number in self._members}
        for number, task in self._first.items():
            if self._waits_s[task]:
                begun[number] = [self._activities.add(f"wait {number}", least_s=self._waits_s[task])]
            if seconds:
                after = begun[number]
                begun[number] = [
                    self._activities.add(f"begin {number}", cpu={number: seconds}, lane=number, after=after)
                ]
        return begun

    def _compute(self, cuts: _Cuts, begun: PerClass) -> dict[int, list[str]]:
        """Forward and backward computation in parts, which wait for the values that they use."""
        computed: dict[int, list[str]] = {}
        reads: dict[int, list[Exchange]] = defaultdict(list)
        for e in self._exchanges:
            if e.is_read:
                reads[cuts.first_after(e)].append(e)
        for number, profile in self._profiles.items():
            names: list[str] = []
            for part in range(cuts.n):
                after = [*(names[-1:] or begun[number])]
                for e in reads[part]:
                    after += self._exchanging.arrivals(e, number)
                seconds = cuts.length(part) * profile.compute_s
                names.append(
                    self._activities.add(
                        f"compute {number}.{part}", cpu={number: seconds}, lane=number, after=after
                    )
                )
            computed[number] = names
        return computed

    def _gradients(self, cuts: _Cuts, computed: PerClass) -> dict[int, dict[str, list[str]]]:
        """Exchanges of gradients, in the order in which these are ready.

        Returns:
            Class → variable → activities after which the class can update it.
        """
        arrived: dict[int, dict[str, list[str]]] = {number: defaultdict(list) for number in self._members}
        # No result is waited for until all gradients are handed over.
        ends = {number: names[-1:] for number, names in computed.items()}
        gradients = (e for e in self._exchanges if e.flow.values == "gradients")
        for e in sorted(gradients, key=cuts.ready):
            after = {number: [names[cuts.last_before(e)]] for number, names in computed.items()}
            for number, names in self._exchanging.exchanged(e, after, ends).items():
                for variable in self._exchanging.variables(e.flow):
                    arrived[number][variable] += names
        return arrived

    def _updates(
        self, arrived: Mapping[int, Mapping[str, Sequence[str]]], computed: PerClass
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
                    seconds += (
                        self._costs.servers.update_s if self._is_served and name in arrived[number] else 0.0
                    )
                update = self._activities.add(
                    f"update {number}.{len(own)}", cpu={number: seconds}, lane=number, after=after
                )
                own |= dict.fromkeys(names, update)
            updated[number] = own
        return updated

    def _after_updates(self, e: Exchange, updated: Mapping[str, str], computed: Sequence[str]) -> list[str]:
        after = {
            updated[name]: None for name in sorted(self._exchanging.variables(e.flow)) if name in updated
        }
        return list(after) or list(computed[-1:])

    def _assign(self, e: Exchange, ends: PerClass) -> None:
        received = e.flow.links.received()
        for number, after in ends.items():
            # A sum passes twice, in parts; each value is stored once.
            n_bytes = e.flow.value_bytes if e.flow.op == "sum" else float(received[self._first[number]])
            seconds = n_bytes * self._costs.assign_s
            self._activities.add(f"{e} assign {number}", cpu={number: seconds}, lane=number, after=after)

    def _release_workers(self, updated: Mapping[int, Mapping[str, str]]) -> None:
        """Worker 0 releases all others at the end of a step."""
        cost, n_others = self._costs.servers, self._topology.n_tasks - 1
        after = dict.fromkeys(update for own in updated.values() for update in own.values())
        first = next(number for number, tasks in self._members.items() if 0 in tasks)
        self._activities.add(
            "release", cpu={first: cost.token_s * n_others}, least_s=cost.latency_s, lane=first, after=after
        )


class _Cuts:
    """Parts of the computation between the moments at which values are used or gradients are ready."""

    def __init__(
        self,
        exchanges: Sequence[Exchange],
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

    def ready(self, e: Exchange) -> float:
        return self._moments[e.number]

    def first_after(self, e: Exchange) -> int:
        """First part of the computation that uses an exchange's values."""
        return self._first_after[e.number]

    def last_before(self, e: Exchange) -> int:
        """Part of the computation at whose end an exchange's values are known."""
        return self._last_before[e.number]
