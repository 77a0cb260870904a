"""Passes, and the running of them in order."""

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Protocol

from strategies.ir.graph_rules import verify
from strategies.ir.train_graph import TrainGraph
from strategies.passes.task_plan import TaskPlan
from strategies.topology import Topology


class Pass(Protocol):
    """A pure, deterministic rewriting of a train graph for one task.

    Its only option is the plan. The same object comes back if nothing changes.
    """

    name: ClassVar[str]

    def __init__(self, *, plan: TaskPlan) -> None: ...

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTiming:
    """Cost of a pass: seconds, and nodes after it."""

    name: str
    seconds: float
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformed:
    """The step of one task after all passes."""

    step: TrainGraph
    timings: tuple[PassTiming, ...]

    @property
    def seconds(self) -> float:
        return sum(timing.seconds for timing in self.timings)


def run_passes(
    passes: Sequence[Pass], step: TrainGraph, topology: Topology, *, check: bool = True
) -> Transformed:
    """Apply passes one after the other.

    Args:
        check: verify the graph after each pass; off where the time counts.
    Raises:
        GraphError: when a pass leaves a graph that breaks a rule; the note names the pass.
    """
    timings = []
    for rewrite in passes:
        with _collections_paused():
            started = time.perf_counter()
            step = rewrite.apply(step, topology)
            seconds = time.perf_counter() - started
        timings.append(PassTiming(name=rewrite.name, seconds=seconds, nodes=len(step.graph.nodes)))
        if check:
            try:
                verify(step.graph)
            except Exception as error:
                error.add_note(f"after the pass {rewrite.name!r}")
                raise
    return Transformed(step=step, timings=tuple(timings))


@contextmanager
def _collections_paused() -> Iterator[None]:
    """A pass creates a graph of new objects without cycles, so that garbage collection would free nothing.

    Python would start a full collection again and again as the graph grows, each over all that TensorFlow's
    modules hold: up to half of a pass's time, and more per node the larger the graph.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
