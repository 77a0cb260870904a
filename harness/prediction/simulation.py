"""Simulation of activities that share resources, such as cores and links, and take turns in lanes.

An activity needs an amount of each of its resources, and gets all of them at the same pace. Activities that
run at the same time share a scarce resource evenly, and what one does not use is left to the others (max-min
fairness), as threads share a core and connections a link. Between two events, all paces are constant.

A resource may have a bucket of tokens, as limited links have: what it does not use fills the bucket, and an
activity that begins uses these tokens first, at once.

A lane runs one activity at a time until it ends, like the thread of TensorFlow's executor on one core: of the
activities that wait for it, the one that follows the ended one is next, then the oldest.

Source:
    Casanova et al. 2014, "Versatile, scalable, and accurate simulation of distributed applications and
    platforms", JPDC 74(10), for activities as flows that share resources by max-min fairness.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

_NEGLIGIBLE = 1e-9
"""Part of a resource or an activity that counts as none, because of rounding."""
_NO_BUCKETS: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Part of a step.

    Attributes:
        name: unique name.
        needs: resource → amount, in units of the resource's rate × seconds.
        least_s: shortest duration in seconds, such as a latency, whatever the resources.
        after: names of activities that must have ended before it begins.
        lane: lane in which it takes its turn; None if it begins as soon as it can.
    """

    name: str
    needs: Mapping[str, float] = field(default_factory=dict)
    least_s: float = 0.0
    after: Sequence[str] = ()
    lane: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Result of a simulation.

    Attributes:
        spans: activity → its start and end, in seconds.
        busy_s: resource → seconds in which the activities' needs would use it up.
        activities: activities by name.
        tokens: resource → amount in its bucket at the end.
    """

    spans: Mapping[str, tuple[float, float]]
    busy_s: Mapping[str, float]
    activities: Mapping[str, Activity]
    tokens: Mapping[str, float] = field(default_factory=dict)

    @property
    def end_s(self) -> float:
        return max((end_s for _, end_s in self.spans.values()), default=0.0)


def simulate(
    activities: Sequence[Activity],
    rates: Mapping[str, float],
    *,
    buckets: Mapping[str, float] = _NO_BUCKETS,
    tokens: Mapping[str, float] | None = None,
) -> Timeline:
    """Run activities until all have ended.

    Args:
        activities: activities; those in `after` are among them, and there is no cycle.
        rates: resource → units per second; a resource that is not listed is never used up.
        buckets: resource with a rate → most tokens, in its units. tokens: amounts at the start; None for full
            buckets.
    Raises:
        ValueError: an activity waits for itself, or for an unknown one.
    """
    simulation = _Simulation(activities, rates, buckets, buckets if tokens is None else tokens)
    simulation.run()
    busy_s: dict[str, float] = {}
    for activity in activities:
        for resource, amount in activity.needs.items():
            if resource in rates:
                busy_s[resource] = busy_s.get(resource, 0.0) + amount / rates[resource]
    by_name = {activity.name: activity for activity in activities}
    return Timeline(spans=simulation.spans, busy_s=busy_s, activities=by_name, tokens=simulation.tokens)


class _Simulation:
    """State of a simulation in progress.

    Attributes:
        spans: activities that have ended, with start and end.
        tokens: resource → amount in its bucket.
    """

    def __init__(
        self,
        activities: Sequence[Activity],
        rates: Mapping[str, float],
        buckets: Mapping[str, float],
        tokens: Mapping[str, float],
    ) -> None:
        self._buckets = buckets
        self.tokens = dict(tokens)
        self._by_name = {activity.name: activity for activity in activities}
        self._rates = rates
        self._queues: dict[str, deque[str]] = {a.lane: deque() for a in activities if a.lane is not None}
        self._free = set(self._queues)
        self._n_missing = {activity.name: len(set(activity.after)) for activity in activities}
        self._followers: dict[str, list[str]] = {name: [] for name in self._by_name}
        for activity in activities:
            for other in dict.fromkeys(activity.after):
                if other not in self._followers:
                    raise ValueError(f"activity {activity.name!r} waits for {other!r}, which is unknown")
                self._followers[other].append(activity.name)
        self._running: dict[str, _Running] = {}
        self._users: dict[str, dict[str, float]] = {}
        self._now_s = 0.0
        self.spans: dict[str, tuple[float, float]] = {}

    def run(self) -> None:
        """Run all activities."""
        self._release([name for name, n in self._n_missing.items() if not n])
        while self._running:
            fractions = self._fractions()
            paces = [fractions.get(name, 1.0) / run.fastest_s for name, run in self._running.items()]
            passed_s = min(run.left / pace for run, pace in zip(self._running.values(), paces, strict=True))
            self._now_s += passed_s
            self._fill_buckets(passed_s, fractions)
            ended = []
            for (name, run), pace in zip(self._running.items(), paces, strict=True):
                run.left -= passed_s * pace
                if run.left <= _NEGLIGIBLE:
                    ended.append(name)
            for name in ended:
                self._end(name)
        if len(self.spans) < len(self._by_name):
            stuck = next(name for name in self._by_name if name not in self.spans)
            raise ValueError(f"activity {stuck!r} waits for itself")

    def _release(self, names: Sequence[str], ended_lane: str | None = None) -> None:
        """Begin activities, or let them wait for their lanes.

        Args:
            names: activities that wait for no other any more.
            ended_lane: lane of the activity that they followed.
        """
        for name in names:
            lane = self._by_name[name].lane
            if lane is None:
                self._begin(name)
            elif lane == ended_lane:
                self._queues[lane].appendleft(name)
                ended_lane = None
            else:
                self._queues[lane].append(name)
        for lane, queue in self._queues.items():
            while queue and lane in self._free:
                self._free.remove(lane)
                self._begin(queue.popleft())

    def _fractions(self) -> dict[str, float]:
        """Activities that are slowed → part of the pace that each would have alone."""
        users: dict[str, dict[str, float]] = {}
        fair: dict[str, float] = {}
        for resource, own in self._users.items():
            fair_share = _fair_share(own.values(), 1.0)
            if fair_share is not None:
                users[resource], fair[resource] = dict(own), fair_share
        free = dict.fromkeys(users, 1.0)
        fractions: dict[str, float] = {}
        while fair:
            slowest = min(fair, key=lambda resource: fair[resource] / max(users[resource].values()))
            changed: set[str] = set()
            for name in users[slowest]:
                shares = self._running[name].shares
                fraction = min(1.0, *(fair[r] / share for r, share in shares.items() if r in fair))
                fractions[name] = fraction
                for resource, share in shares.items():
                    if resource in fair and resource != slowest:
                        del users[resource][name]
                        free[resource] = max(0.0, free[resource] - fraction * share)
                        changed.add(resource)
            del fair[slowest]
            # The others may get more, once these use less of the resources that they share.
            for resource in changed:
                fair_share = _fair_share(users[resource].values(), free[resource])
                if fair_share is None:
                    del fair[resource]
                else:
                    fair[resource] = fair_share
        return fractions

    def _fill_buckets(self, passed_s: float, fractions: Mapping[str, float]) -> None:
        for resource, most in self._buckets.items():
            users = self._users.get(resource, {})
            used = sum(share * fractions.get(name, 1.0) for name, share in users.items())
            filled = self.tokens[resource] + passed_s * self._rates[resource] * max(0.0, 1.0 - used)
            self.tokens[resource] = min(most, filled)

    def _needs(self, activity: Activity) -> Mapping[str, float]:
        """Needs of an activity that begins, without those that its tokens cover."""
        if self._buckets.keys().isdisjoint(activity.needs):
            return activity.needs
        needs = dict(activity.needs)
        for resource in self._buckets.keys() & needs.keys():
            covered = min(needs[resource], self.tokens[resource])
            self.tokens[resource] -= covered
            needs[resource] -= covered
        return needs

    def _begin(self, name: str) -> None:
        activity = self._by_name[name]
        run = _Running.of(activity.least_s, self._needs(activity), self._rates, self._now_s)
        self._running[name] = run
        for resource, share in run.shares.items():
            self._users.setdefault(resource, {})[name] = share

    def _end(self, name: str) -> None:
        run = self._running.pop(name)
        self.spans[name] = run.start_s, self._now_s
        for resource in run.shares:
            del self._users[resource][name]
        lane = self._by_name[name].lane
        if lane is not None:
            self._free.add(lane)
        ready = []
        for follower in self._followers[name]:
            self._n_missing[follower] -= 1
            if not self._n_missing[follower]:
                ready.append(follower)
        self._release(ready, lane)


@dataclass(slots=True, kw_only=True)
class _Running:
    """Activity in progress.

    Attributes:
        fastest_s: duration if it were alone.
        shares: resource → part of it that is used at that pace.
        left: part of the activity that is left, from 1 to 0.
    """

    start_s: float
    fastest_s: float
    shares: Mapping[str, float]
    left: float

    @classmethod
    def of(
        cls, least_s: float, needs: Mapping[str, float], rates: Mapping[str, float], now_s: float
    ) -> _Running:
        seconds = {name: amount / rates[name] for name, amount in needs.items() if name in rates}
        fastest_s = max(least_s, *seconds.values(), 0.0)
        shares = {
            name: needed_s / fastest_s
            for name, needed_s in seconds.items()
            if needed_s > _NEGLIGIBLE * fastest_s
        }
        return cls(
            start_s=now_s, fastest_s=fastest_s or 1.0, shares=shares, left=1.0 if fastest_s > 0.0 else 0.0
        )


def _fair_share(shares: Collection[float], free: float) -> float | None:
    """Part of a resource that each activity may use: small needs are met, the rest is divided.

    Args:
        shares: parts that the activities would use alone.
    Returns:
        None if the resource has enough for all.
    """
    if sum(shares) <= free + _NEGLIGIBLE:
        return None
    ordered = sorted(shares)
    for k, share in enumerate(ordered):
        fair = free / (len(ordered) - k)
        if share > fair:
            return fair
        free -= share
    return None
