"""Jobs about a captured step: capture it, lay batches beside it, make its reference, verify and transform it.

Each runs in a fresh process and leaves files or plain values behind; `harness.worker.process.job_process`
calls it with the state of its process first.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from harness.equivalence.separability import Separability, separability_document
from harness.equivalence.step_results import results_document
from harness.equivalence.verdict_document import verdict_document
from harness.errors import UsageError
from harness.experiment.cases import Case, global_batch
from harness.worker.process import os_process
from harness.worker.process.job_process import JobState

if TYPE_CHECKING:
    from harness.equivalence.reference_outcome import Reference
    from harness.equivalence.verdict import BoundVerdict
    from strategies.plan.schema import Plan, StepSummary
    from strategies.topology import Topology
    from workloads.protocol import Workload

Batch: TypeAlias = list[np.ndarray[Any, Any]]

MAX_STAGED_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedWorkload:
    """What the driver needs to know of a captured workload, whose files it may not see.

    Attributes:
        summary: what builders plan from.
        batch_size: the workload's default global batch.
        replica_batch: examples that every shard must have, None if any number will do.
    """

    summary: "StepSummary"
    batch_size: int
    flops_per_example: float | None
    replica_batch: int | None


def capture(state: JobState, case: Case, seed: int, folder: str, n_shards: int) -> CapturedWorkload:
    """Capture a case's workload into a folder, once for all its ranks.

    Args:
        n_shards: into how many parts the case splits its global batch.

    Raises:
        UsageError: the workload or its step cannot be used; the message says why.
    """
    import keras

    from harness.worker.session.capture_store import save
    from strategies.capture.capture import capture as capture_step
    from strategies.errors import CaptureError
    from strategies.summary import summarise
    from workloads.data import examples_of
    from workloads.steps.keras_step import step_of

    keras.backend.clear_session()
    workload = workload_of(case)
    with _told_as_usage(workload, "dataset() must return examples"):
        structure = examples_of(workload, seed=seed).dataset.element_spec
    keras.utils.set_random_seed(seed)
    with _told_as_usage(workload, "train_step() must return a step"):
        asked = step_of(workload, structure)
    try:
        captured = capture_step(asked.step, structure, replica_batch=_even_share(case, workload, n_shards))
    except CaptureError as error:
        raise UsageError(str(error), field=case.workload_name) from error
    captured_step = replace(captured.step, notes=(*asked.notes, *captured.step.notes))
    summary = summarise(captured_step, case.workload_name, getattr(captured, "rows_per_example", {}))
    save(Path(folder), captured_step, captured.initial, summary)
    fixed = [b.shape[0] for b in summary.batch if b.shape[0] != -1]
    return CapturedWorkload(
        summary=summary,
        batch_size=workload.batch_size,
        flops_per_example=workload.flops_per_example,
        replica_batch=fixed[0] if fixed else None,
    )


def restore(state: JobState, capture_folder: str, checkpoint: str) -> int | None:
    """Let a capture begin with the values of a checkpoint instead of its own.

    Returns:
        number of steps made before it, None where the checkpoint does not say.
    Raises:
        UsageError: there is none, it is another model's, or it cannot be read whole.
    """
    from harness.worker.session.capture_store import InitialValues, save_values
    from harness.worker.session.checkpoint import read_checkpoint

    folder = Path(capture_folder)
    initial = InitialValues(folder)
    found = read_checkpoint(Path(checkpoint), {name: initial.stored(name) for name in initial.names})
    save_values(folder, found.values)
    return found.step


def lay_batches(
    state: JobState,
    case: Case,
    seed: int,
    folder: str,
    n_batches: int,
    n_least: int,
) -> int:
    """Write the first global batches of a case's dataset, fewer where they are large.

    Args:
        n_batches: as many as a case could use. n_least: however large they are.
    Returns:
        how many there are.
    """
    from workloads.data import examples_of

    workload = workload_of(case)
    size = global_batch(case, workload.batch_size)
    with _told_as_usage(workload, "dataset() must return examples"):
        examples = examples_of(workload, seed=seed)
        example_bytes = sum(part.n_bytes for part in examples.components)
        # Once as they are read and once as they are written.
        _require_memory(2 * n_least * size * example_bytes, case, size)
        made = examples.batches(size)
        first = next(made)
    batch_bytes = max(1, sum(part.nbytes for part in first))
    n = min(n_batches, max(n_least, MAX_STAGED_BYTES // batch_bytes))
    with _told_as_usage(workload, "dataset() must return examples"):
        parts = list(zip(first, *itertools.islice(made, n - 1), strict=True))
    target = Path(folder)
    target.mkdir(parents=True)
    for number, part in enumerate(parts):
        np.save(target / f"{number}.npy", np.stack(part), allow_pickle=False)
    return n


def read_batches(
    folder: Path, start: int | None = None, stop: int | None = None, n: int | None = None
) -> list[Batch]:
    """The batches that `lay_batches` wrote, or the examples `[start, stop)` of the first n."""
    files = sorted(folder.glob("*.npy"), key=lambda path: int(path.stem))
    parts = [np.load(file, mmap_mode="r")[:n] for file in files]
    return [[np.ascontiguousarray(part[i, start:stop]) for part in parts] for i in range(len(parts[0]))]


def stage_batches(state: JobState, folder: str, start: int, stop: int) -> None:
    """Lay this worker's examples of all batches ready in memory."""
    from harness.worker.jobs.training import stage

    stage(state, read_batches(Path(folder), start, stop))


def reference(
    state: JobState, capture_folder: str, batch_folder: str, topology: "Topology", n_steps: int
) -> "Reference":
    """The reference of a captured step in its own types, after so many steps on the first batches."""
    from harness.worker.session.capture_store import InitialValues, load_step
    from harness.worker.verify.check import make_reference

    folder = Path(capture_folder)
    batches = read_batches(Path(batch_folder), n=n_steps)
    return make_reference(load_step(folder), InitialValues(folder), topology, batches)


def separability(
    state: JobState, capture_folder: str, batch_folder: str, topology: "Topology"
) -> "Separability":
    """Whether the shards of the first batch mean what a captured step means on the whole of it.

    Raises:
        UsageError: the loss is a sum over examples and is not said to be one, or the other way round.
    """
    from harness.worker.session.capture_store import InitialValues, load_step
    from harness.worker.verify.whole_batch import separability_of

    folder = Path(capture_folder)
    (batch,) = read_batches(Path(batch_folder), n=1)
    return separability_of(load_step(folder), InitialValues(folder, float64=True), topology, batch)


def bounds(
    state: JobState, capture_folder: str, batch_folder: str, plan: "Plan", n_steps: int
) -> "BoundVerdict":
    """Whether a compressed strategy stays within its bounds in as many steps, in the model's own types.

    Its workers share this process: what crosses their boundaries is looked at, which timed steps do not show.
    """
    from harness.worker.session.capture_store import InitialValues, load_step
    from harness.worker.verify.check import check_bounds

    folder = Path(capture_folder)
    batches = read_batches(Path(batch_folder), n=n_steps)
    return check_bounds(load_step(folder), InitialValues(folder), plan, batches)


def verify(
    state: JobState,
    capture_folder: str,
    batch_folder: str,
    plan: "Plan",
    n_steps: int,
    float64: bool,
    shrink: bool,
    last_batch: int | None = None,
) -> dict[str, Any]:
    """Check a plan against the reference, all workers in this process.

    Args:
        last_batch: examples in the last step's batch, None for all.
    Returns:
        the part of `verify`'s JSON that comes of running: verdict, variables and losses; with `shrink`, also
        the first pass and variable that diverge, if any do.
    Raises:
        UsageError: as `separability`.
    """
    from harness.worker.session.capture_store import InitialValues, in_float64, load_step
    from harness.worker.verify.bisect import first_divergence
    from harness.worker.verify.check import check, check_bounds, make_reference
    from harness.worker.verify.whole_batch import separability_of
    from strategies.planning.plan import topology_of
    from strategies.tf_bridge.float64_step import step_in_float64

    folder = Path(capture_folder)
    captured, initial = load_step(folder), InitialValues(folder, float64=float64)
    batches: Sequence[Batch] = read_batches(Path(batch_folder), n=n_steps)
    batches = [*batches[:-1], [part[:last_batch] for part in batches[-1]]]
    step = step_in_float64(captured) if float64 else captured
    if float64:
        batches = [[in_float64(part) for part in batch] for batch in batches]

    def refer() -> "Reference":
        wide = InitialValues(folder, float64=True)
        separability = separability_of(captured, wide, topology_of(plan), batches[0])
        made = make_reference(step, initial, topology_of(plan), batches)
        return replace(made, separability=separability)

    checkup = check(step, initial, plan, batches, refer)
    verdict, expected = checkup.verdict, checkup.reference
    results = results_document(checkup.results, expected.results)
    answer = verdict_document(verdict, checkup.losses, expected.yardstick.losses, results)
    assert expected.separability is not None
    answer |= separability_document(expected.separability)
    answer["warnings"] = list(plan.warnings)
    answer["notes"] = [*plan.notes, *checkup.notes]
    if plan.strategy_class == "bounded":
        bound = check_bounds(step, initial, plan, batches)
        answer |= {"within_bound": bound.within, "undecidable": list(bound.undecidable)}
        return {**answer, "equivalent": None, "reason": bound.reason}
    if plan.strategy_class == "statistical":
        # It is held to reaching a loss, and differs by what it is.
        return {**answer, "equivalent": None, "reason": None}
    if shrink and verdict.equivalent is False:
        answer["shrink"] = first_divergence(step, initial, plan, batches[0], verdict)
    return answer


def transform(
    state: JobState,
    capture_folder: str,
    plan: "Plan",
    task: int,
    graphdef: str | None,
    text: bool,
) -> dict[str, Any]:
    """Apply a plan's passes for one worker three times and tell what the median one cost.

    Returns:
        `transform`'s JSON.
    """
    from harness.atomic_files import write_bytes
    from harness.worker.session.capture_store import load_step
    from strategies.ir.text import to_text
    from strategies.passes.pass_order import passes_of
    from strategies.passes.run import run_passes
    from strategies.planning.plan import topology_of
    from strategies.tf_bridge.program import build_program

    step = load_step(Path(capture_folder))
    topology, passes = topology_of(plan), passes_of(plan, task)
    run_passes(passes, step, topology, check=True)
    runs = sorted(
        (run_passes(passes, step, topology, check=False) for _ in range(3)), key=lambda run: run.seconds
    )
    made = runs[1]
    program = build_program(made.step, topology, task, nodes_before=len(step.graph.nodes))
    if graphdef is not None:
        try:
            write_bytes(Path(graphdef), program.graph_def)
        except OSError as error:
            raise UsageError(
                f"must be writable, got {error.strerror} for {graphdef}", field="graphdef"
            ) from error
    answer: dict[str, Any] = {
        "nodes_before": program.nodes_before,
        "nodes_after": program.nodes_after,
        "passes": [{"name": t.name, "seconds": t.seconds, "nodes": t.nodes} for t in made.timings],
        "seconds": made.seconds,
    }
    if text:
        answer["text"] = to_text(made.step.graph)
    return answer


def workload_of(case: Case) -> "Workload":
    """The workload that a case names.

    Raises:
        UsageError: there is none of that name, or it cannot be made.
    """
    from workloads.errors import WorkloadError
    from workloads.lookup import registry
    from workloads.python_file import describe_failure

    params: Mapping[str, object] = case.workload.params
    try:
        return registry.resolve(case.workload.reference, params)
    except WorkloadError as error:
        raise UsageError(str(error), field="workload") from error
    except BaseException as error:
        # No signal interrupts a worker: its code has raised this.
        told = describe_failure(error, path=None)
        raise UsageError(
            f"{case.workload.reference} must make a workload, got {told}", field="workload"
        ) from error


def _require_memory(n_bytes: int, case: Case, batch_size: int) -> None:
    """Batches that memory cannot hold would take the machine down with all that it does for others.

    Raises:
        UsageError: it cannot.
    """
    available_bytes = os_process.available_memory_bytes()
    if available_bytes is not None and n_bytes > available_bytes:
        raise UsageError(
            f"must be as many examples as memory holds, got {batch_size}, whose batches take "
            f"{n_bytes / 1e9:.3g} GB of {available_bytes / 1e9:.3g} GB; lower batch_size",
            field=f"{case.workload.reference}.batch_size",
        )


def _even_share(case: Case, workload: "Workload", n_shards: int) -> int | None:
    """Examples in every shard; None if not all have the same, or the batch does not suffice.

    The latter is a mistake in one shape of cases, which their plan will tell; others can use the capture.
    """
    try:
        share, uneven = divmod(global_batch(case, workload.batch_size), n_shards)
    except UsageError:
        return None
    return None if uneven or not share else share


@contextmanager
def _told_as_usage(workload: "Workload", rule: str) -> Iterator[None]:
    """Turn whatever a user's code raises, exits and interrupts included, into one line that says where."""
    from workloads.errors import WorkloadError
    from workloads.lookup.user_file import source_file
    from workloads.python_file import describe_failure

    try:
        yield
    except UsageError:
        raise
    except WorkloadError as error:
        raise UsageError(str(error), field="workload") from error
    except BaseException as error:
        told = describe_failure(error, path=source_file(workload))
        raise UsageError(f"{rule}, got {told}", field=workload.name) from error
