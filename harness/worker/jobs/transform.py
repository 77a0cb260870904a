"""Applies a plan's passes for one worker and tells what they cost."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import UsageError
from harness.worker.process.job import JobState

if TYPE_CHECKING:
    from strategies.passes.run import PassTiming
    from strategies.plan.schema import Plan

_N_TIMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformation:
    """One worker's graph and what its rewriting cost.

    Attributes:
        nodes_before: of the captured step. nodes_after: of this worker's program.
        passes: in order, of the run with the median time.
        text: of the graph; None where nobody asked for it.
    """

    nodes_before: int
    nodes_after: int
    passes: tuple["PassTiming", ...]
    text: str | None = None

    @property
    def seconds(self) -> float:
        """Of all passes together."""
        return sum(timing.seconds for timing in self.passes)


def transform(
    state: JobState,
    capture_folder: str,
    plan: "Plan",
    task: int,
    graphdef: str | None,
    text: bool,
) -> Transformation:
    """Apply a plan's passes for one worker, and again as often as it takes to say what they cost.

    Args:
        graphdef: file to write the worker's GraphDef to.
        text: whether to answer with the graph as text.
    Raises:
        UsageError: the file cannot be written.
    """
    from harness.atomic_files import write_bytes
    from harness.worker.session.capture_store import load_step
    from strategies.compile import compile_step
    from strategies.ir.text import to_text
    from strategies.passes.pass_order import passes_of
    from strategies.passes.run import run_passes
    from strategies.planning.plan import topology_of

    step = load_step(Path(capture_folder))
    compiled = compile_step(step, plan, task, check=True)
    if graphdef is not None:
        try:
            write_bytes(Path(graphdef), compiled.program.graph_def)
        except OSError as error:
            raise UsageError(
                f"must be writable, got {error.strerror} for {graphdef}", field="graphdef"
            ) from error
    topology, passes = topology_of(plan), passes_of(plan, task)
    runs = [run_passes(passes, step, topology, check=False) for _ in range(_N_TIMED)]
    median = sorted(runs, key=lambda run: run.seconds)[_N_TIMED // 2]
    return Transformation(
        nodes_before=compiled.program.nodes_before,
        nodes_after=compiled.program.nodes_after,
        passes=median.timings,
        text=to_text(compiled.step.graph) if text else None,
    )
