"""Activities of a step, with their needs of cores, links and threads of classes of tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from harness.prediction.simulation import Activity

COMPUTING = ("compute", "update")
"""First words of activities that are no exchange's."""


def core(number: int) -> str:
    """Resource: the cores that a task of a class may use."""
    return f"core {number}"


def shared_core(number: int) -> str:
    """Resource: a core set that several tasks share."""
    return f"shared core {number}"


def link_out(number: int) -> str:
    """Resource: the link of a task of a class, from it to others."""
    return f"out {number}"


def link_in(number: int) -> str:
    """Resource: the link of a task of a class, from others to it."""
    return f"in {number}"


def executor_lane(number: int) -> str:
    """Lane: the thread of a task's executor."""
    return f"thread {number}"


PerClass: TypeAlias = Mapping[int, Sequence[str]]
"""Class of tasks → names of activities."""
Amounts: TypeAlias = Mapping[int | None, float] | Mapping[int, float]
"""Class of tasks → seconds or bytes of each of its tasks.

Those of tasks that are not simulated (None) do not count.
"""


class StepActivities:
    """Activities that are added one after the other, each by a name.

    Attributes:
        added: activities so far.
    """

    def __init__(self, members: Mapping[int, Sequence[int]], *, n_shared: int | None) -> None:
        """Start without activities.

        Args:
            members: class → its tasks.
            n_shared: number of shared cores, see `step_model.Machines`.
        """
        self.added: list[Activity] = []
        self._sharing = {
            number: {} if n_shared is None else Counter(shared_core(task % n_shared) for task in tasks)
            for number, tasks in members.items()
        }
        self._last: dict[object, str] = {}

    def add(
        self,
        name: str,
        *,
        cpu: Amounts | None = None,
        lane: int | str | None = None,
        least_s: float = 0.0,
        after: Iterable[str] = (),
        out: Amounts | None = None,
        into: Amounts | None = None,
    ) -> str:
        """Add an activity.

        Args:
            cpu: processor time. out, into: bytes on links.
            least_s: latency, in which neither processors nor links are used.
        """
        cpu = cpu or {}
        needs = {
            resource(number): amount
            for resource, amounts in ((core, cpu), (link_out, out or {}), (link_in, into or {}))
            for number, amount in amounts.items()
            if number is not None
        }
        for number, seconds in cpu.items():
            for name_of_core, n_tasks in () if number is None else self._sharing[number].items():
                needs[name_of_core] = needs.get(name_of_core, 0.0) + seconds * n_tasks
        before = tuple(after)
        if least_s and needs:
            self.added.append(Activity(name=f"{name}, latency", least_s=least_s, after=before))
            before, least_s = (f"{name}, latency",), 0.0
        # A thread uses one core at most.
        alone_s = max((seconds for number, seconds in cpu.items() if number is not None), default=0.0)
        self.added.append(
            Activity(
                name=name,
                needs=needs,
                least_s=least_s + alone_s,
                after=before,
                lane=executor_lane(lane) if isinstance(lane, int) else lane,
            )
        )
        return name

    def send(
        self,
        name: str,
        *,
        cpu: Amounts,
        least_s: float,
        after: Sequence[str],
        connection: object | None = None,
        out: Amounts,
        into: Amounts,
    ) -> str:
        """Add the copies of a whole tensor, in turn with others of a connection, then its bytes on the way.

        A connection sends one tensor after the other; connections share a link evenly.
        """
        copy = f"{name} copy"
        before = after if connection is None else self.in_turn(connection, copy, after)
        self.add(copy, cpu=cpu, after=before)
        lane = None if connection is None else f"connection {connection}"
        return self.add(name, least_s=least_s, after=[copy], out=out, into=into, lane=lane)

    def in_turn(self, connection: object, name: str, after: Sequence[str]) -> list[str]:
        """Queue an activity on a connection, which carries one at a time; return what it waits for."""
        before = self._last.get(connection)
        self._last[connection] = name
        return [*after, *([] if before is None else [before])]
