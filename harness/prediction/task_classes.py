"""Classes of tasks that compute, serve and send alike, so that one task of each is simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from strategies.plan.exchanges.flow import Flow
from strategies.plan.links import ServerLinks
from strategies.topology import Topology

_MOST_CLASSES = 8
"""Most classes of tasks that are simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskClasses:
    """Classes of tasks by number.

    Attributes:
        alike: class → its tasks, which are alike. The first one represents them.
        members: class → its tasks, and in the largest class also all tasks that are not simulated. These
            compute and send as that class does, and answer at once if they are servers.
    """

    alike: Mapping[int, Sequence[int]]
    members: Mapping[int, Sequence[int]]

    @property
    def first(self) -> dict[int, int]:
        """Class → task that represents it."""
        return {number: tasks[0] for number, tasks in self.alike.items()}


def task_classes(
    topology: Topology, flows: Sequence[Flow], waits_s: Sequence[float], *, n_shared: int | None
) -> TaskClasses:
    """Classes of the tasks of a step.

    Args:
        waits_s: time that each task waits before the step.
        n_shared: number of shared cores, see `step_model.Machines`; tasks of a class share one.
    """
    classes = _classes(topology, flows, waits_s, n_shared)
    alike = dict(enumerate(_most_important(classes, flows, waits_s)))
    simulated = {task for tasks in alike.values() for task in tasks}
    others = [task for task in range(topology.n_tasks) if task not in simulated]
    largest = max(alike, key=lambda number: len(alike[number]))
    members = {number: [*tasks, *others] if number == largest else tasks for number, tasks in alike.items()}
    return TaskClasses(alike=alike, members=members)


def _classes(
    topology: Topology, flows: Sequence[Flow], waits_s: Sequence[float], n_shared: int | None
) -> list[list[int]]:
    tasks = np.arange(topology.n_tasks)
    columns = [np.array(topology.kinds().of_task), np.array(waits_s), tasks % (n_shared or 1)]
    for flow in flows:
        columns += [np.round(flow.links.sent()), np.round(flow.links.received())]
        if isinstance(flow.links, ServerLinks):
            columns.append(np.isin(tasks, flow.links.servers))
    members: dict[bytes, list[int]] = {}
    for task, figures in enumerate(np.column_stack(columns).astype(np.float64)):
        members.setdefault(figures.tobytes(), []).append(task)
    return list(members.values())


def _most_important(
    classes: list[list[int]], flows: Sequence[Flow], waits_s: Sequence[float]
) -> list[list[int]]:
    """The class of worker 0, the largest one, that with the longest wait, and the busiest."""
    if len(classes) <= _MOST_CLASSES:
        return classes
    nothing = np.zeros(len(waits_s))
    n_bytes = np.sum([nothing, *(flow.links.sent() + flow.links.received() for flow in flows)], axis=0)
    largest = max(classes, key=len)
    busiest = sorted(classes, key=lambda tasks: float(n_bytes[tasks[0]]), reverse=True)
    first = next(tasks for tasks in classes if 0 in tasks)
    slowest = max(classes, key=lambda tasks: waits_s[tasks[0]])
    by_importance = {tasks[0]: tasks for tasks in (largest, first, slowest, *busiest)}
    return sorted(list(by_importance.values())[:_MOST_CLASSES])
