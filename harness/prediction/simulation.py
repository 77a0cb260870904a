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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TypeAlias

_NEGLIGIBLE = 1e-9
"""Part of a resource or an activity that counts as none, because of rounding."""
_DIGITS = 9
"""Digits to which parts of a resource are rounded, so that equal ones are equal."""
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
        buckets: resource with a rate → most tokens, in its units.
        tokens: amounts in the buckets at the start; None if they are full.
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
        self._by_name = {activity.name: activity for activity in activities}
        self._rates = rates
        self._buckets = buckets
        self._queues: dict[str, deque[str]] = {a.lane: deque() for a in activities if a.lane is not None}
        self._free = set(self._queues)
        self._n_missing = {activity.name: len(set(activity.after)) for activity in activities}
        self._followers: dict[str, list[str]] = {name: [] for name in self._by_name}
        for activity in activities:
            for other in dict.fromkeys(activity.after):
                if other not in self._followers:
                    raise ValueError(f"activity {activity.name!r} waits for {other!r}, which is unknown")
                self._followers[other].append(activity.name)
        self._groups: dict[_Shares, _Group] = {}
        self._users: dict[str, dict[_Shares, float]] = {}
        self._starts: dict[str, tuple[int, float]] = {}
        self._now_s = 0.0
        self.spans: dict[str, tuple[float, float]] = {}
        self.tokens = dict(tokens)

    def run(self) -> None:
        """Run all activities."""
        self._release([name for name, n in self._n_missing.items() if not n])
        while self._groups:
            fractions = self._fractions()
            left_s = {
                shares: group.next_s / fractions.get(shares, 1.0) for shares, group in self._groups.items()
            }
            passed_s = min(left_s.values())
            self._now_s += passed_s
            self._fill_buckets(passed_s, fractions)
            ended: list[str] = []
            for shares, group in list(self._groups.items()):
                group.clock_s += passed_s * fractions.get(shares, 1.0)
                ended += group.ended(at_least_one=left_s[shares] <= passed_s)
                if not group.ends:
                    self._remove(shares)
            for name in sorted(ended, key=lambda name: self._starts[name]):
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
        lanes = [] if ended_lane is None else [ended_lane]
        for name in names:
            lane = self._by_name[name].lane
            if lane is None:
                self._begin(name)
                continue
            if lane == ended_lane:
                self._queues[lane].appendleft(name)
                ended_lane = None
            else:
                self._queues[lane].append(name)
            lanes.append(lane)
        for lane in lanes:
            if self._queues[lane] and lane in self._free:
                self._free.remove(lane)
                self._begin(self._queues[lane].popleft())

    def _fractions(self) -> dict[_Shares, float]:
        """Groups that are slowed → part of the pace that each of their activities would have alone."""
        users: dict[str, dict[_Shares, float]] = {}
        fair: dict[str, float] = {}
        for resource, own in self._users.items():
            fair_share = self._fair_share(own, 1.0)
            if fair_share is not None:
                users[resource], fair[resource] = dict(own), fair_share
        free = dict.fromkeys(users, 1.0)
        fractions: dict[_Shares, float] = {}
        while fair:
            slowest = min(fair, key=lambda resource: fair[resource] / max(users[resource].values()))
            most = max(users[slowest].values())
            fraction = fair[slowest] / most
            changed: set[str] = set()
            for shares in [shares for shares, share in users[slowest].items() if share == most]:
                fractions[shares] = fraction
                for resource, share in shares:
                    if resource in fair:
                        del users[resource][shares]
                        used = fraction * share * len(self._groups[shares].ends)
                        free[resource] = max(0.0, free[resource] - used)
                        changed.add(resource)
            # The others may get more, once these use less of the resources that they share.
            for resource in changed:
                fair_share = self._fair_share(users[resource], free[resource])
                if fair_share is None:
                    del fair[resource]
                else:
                    fair[resource] = fair_share
        return fractions

    def _fair_share(self, users: Mapping[_Shares, float], free: float) -> float | None:
        """Part of a resource that each activity may use: small needs are met, the rest is divided.

        Args:
            users: group → part that each of its activities would use alone.
        Returns:
            None if the resource has enough for all.
        """
        counts = [(share, len(self._groups[shares].ends)) for shares, share in users.items()]
        if sum(share * n for share, n in counts) <= free + _NEGLIGIBLE:
            return None
        n_left = sum(n for _, n in counts)
        for share, n in sorted(counts):
            fair = free / n_left
            if share > fair:
                return fair
            free, n_left = free - share * n, n_left - n
        return None

    def _fill_buckets(self, passed_s: float, fractions: Mapping[_Shares, float]) -> None:
        for resource, most in self._buckets.items():
            used = sum(
                share * len(self._groups[shares].ends) * fractions.get(shares, 1.0)
                for shares, share in self._users.get(resource, {}).items()
            )
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
        self._starts[name] = len(self._starts), self._now_s
        needs = self._needs(activity)
        seconds = {r: amount / self._rates[r] for r, amount in needs.items() if r in self._rates}
        alone_s = max(activity.least_s, *seconds.values(), 0.0)
        shares = tuple(
            (resource, round(needed_s / alone_s, _DIGITS))
            for resource, needed_s in seconds.items()
            if needed_s > _NEGLIGIBLE * alone_s
        )
        if shares not in self._groups:
            self._groups[shares] = _Group()
            for resource, share in shares:
                self._users.setdefault(resource, {})[shares] = share
        self._groups[shares].begin(name, alone_s)

    def _remove(self, shares: _Shares) -> None:
        del self._groups[shares]
        for resource, _ in shares:
            del self._users[resource][shares]

    def _end(self, name: str) -> None:
        self.spans[name] = self._starts[name][1], self._now_s
        lane = self._by_name[name].lane
        if lane is not None:
            self._free.add(lane)
        ready = []
        for follower in self._followers[name]:
            self._n_missing[follower] -= 1
            if not self._n_missing[follower]:
                ready.append(follower)
        self._release(ready, lane)


_Shares: TypeAlias = tuple[tuple[str, float], ...]
"""Resources, with the part of each that an activity uses alone; those with equal ones have equal paces."""


@dataclass(slots=True)
class _Group:
    """Activities in progress with equal paces.

    Attributes:
        clock_s: seconds that one of them, alone, would have run since the group began.
        ends: reading of the clock at each one's end, and its name; a heap.
    """

    clock_s: float = 0.0
    ends: list[tuple[float, str]] = field(default_factory=list)

    def begin(self, name: str, alone_s: float) -> None:
        heappush(self.ends, (self.clock_s + alone_s, name))

    @property
    def next_s(self) -> float:
        """Time on the clock until the next end."""
        return max(0.0, self.ends[0][0] - self.clock_s)

    def ended(self, *, at_least_one: bool) -> list[str]:
        """Remove activities that have ended.

        Args:
            at_least_one: True if the next one has, whatever rounding makes of the clock.
        """
        names = [heappop(self.ends)[1]] if at_least_one else []
        while self.ends and self.next_s <= _NEGLIGIBLE * self.clock_s:
            names.append(heappop(self.ends)[1])
        return names
