"""Apply a plan's passes for one worker and report their cost."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import UsageError
from harness.worker.jobs.refusals import refusals_as, strategy_error
from harness.worker.process.job import JobState

if TYPE_CHECKING:
    from strategies.ir.train_graph import TrainGraph
    from strategies.passes.run import Pass, PassTiming
    from strategies.plan.schema import Plan
    from strategies.topology import Topology

_N_TIMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformation:
    """One worker's graph, and the cost of rewriting it.

    Attributes:
        nodes_before: nodes of the captured step. nodes_after: nodes of this worker's program.
        passes: timings in order, of the run with the median time.
        text: text form of the graph; None if not requested.
    """

    nodes_before: int
    nodes_after: int
    passes: tuple["PassTiming", ...]
    text: str | None = None

    @property
    def seconds(self) -> float:
        """Seconds of all passes together."""
        return sum(timing.seconds for timing in self.passes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Requested outputs of a worker's graph besides its figures.

    Attributes:
        graphdef: file for the GraphDef. stages: folder for the graph as captured and after every pass.
        text: True includes the text form in the result.
    """

    graphdef: Path | None = None
    stages: Path | None = None
    text: bool = False


def transform(
    state: JobState, capture_folder: str, plan: "Plan", task: int, wanted: Wanted
) -> Transformation:
    """Apply a plan's passes for one worker, repeated often enough to time them.

    Raises:
        UsageError: a file cannot be written, or the strategy cannot run the step.
    """
    from harness.atomic_files import write_output
    from harness.worker.session.capture_store import load_step
    from strategies.compile import compile_step
    from strategies.ir.text import to_text
    from strategies.passes.pass_order import passes_of
    from strategies.passes.run import run_passes
    from strategies.planner import topology_of

    step = load_step(Path(capture_folder))
    with refusals_as(strategy_error):
        compiled = compile_step(step, plan, task, check=True)
    topology, passes = topology_of(plan), passes_of(plan, task)
    if wanted.graphdef is not None:
        with _writable("graphdef", wanted.graphdef):
            write_output(wanted.graphdef, compiled.program.graph_def)
    if wanted.stages is not None:
        with _writable("stages", wanted.stages):
            _write_stages(wanted.stages, step, passes, topology)
    runs = [run_passes(passes, step, topology, check=False) for _ in range(_N_TIMED)]
    median = sorted(runs, key=lambda run: run.seconds)[_N_TIMED // 2]
    return Transformation(
        nodes_before=compiled.program.nodes_before,
        nodes_after=compiled.program.nodes_after,
        passes=median.timings,
        text=to_text(compiled.step.graph) if wanted.text else None,
    )


def _write_stages(folder: Path, step: "TrainGraph", passes: Sequence["Pass"], topology: "Topology") -> None:
    """Write `00-captured.txt`, `01-<pass>.txt` and so on, and a folder of each name for TensorBoard."""
    from strategies.passes.run import run_passes

    _write_stage(folder / "00-captured", step)
    for number, rewrite in enumerate(passes, start=1):
        step = run_passes([rewrite], step, topology).step
        _write_stage(folder / f"{number:02}-{rewrite.name}", step)


def _write_stage(stage: Path, step: "TrainGraph") -> None:
    from harness.atomic_files import write_text
    from strategies.ir.text import to_text
    from strategies.tf_bridge.runtime import write_event_file

    write_event_file(stage, step.graph)
    write_text(stage.with_name(f"{stage.name}.txt"), to_text(step.graph))


@contextmanager
def _writable(option: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"must be writable, got {error.strerror} for {path}", field=option) from error
