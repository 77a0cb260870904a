"""Captures of a run: each workload is captured once for all cases, strategies and repeats."""

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from harness.errors import UNSUPPORTED, CaseError, UsageError
from harness.experiment.cases import Case, global_batch
from harness.experiment.references import without_batch
from harness.measure.timeouts import USUAL, Timeouts
from harness.provision.accelerators import replicas_on_gpus
from harness.provision.failures import USER_ERROR
from harness.verification.reference import Reference, Tolerances
from harness.verification.separability import Separability
from harness.verification.verdict import BoundVerdict, Verdict
from harness.verification.worker import jobs
from harness.verification.worker.capture import CapturedWorkload, restore
from harness.verification.worker.capture import capture as capture_workload
from harness.worker.jobs.after_repeats import evaluate
from harness.worker.jobs.batches import write_batches
from harness.worker.process.job import CallsJobs, Job, Result, job_name
from harness.worker.variable_parts import Array
from harness.written_values import normalised
from strategies.errors import StrategyError, UnsupportedError
from strategies.ir.variable import Rule
from strategies.plan.aggregation import Aggregation
from strategies.plan.execution import Execution, requested_topology
from strategies.plan.faults import Fault, check_faults, refusal, sending_wrong
from strategies.plan.schema import Plan, StepSummary
from strategies.planner import refusal_of, topology_of
from strategies.topology import Topology

Value = TypeVar("Value")
Subject = TypeVar("Subject", Topology, Plan)

CAPTURE_CHECK_STEPS = 2
"""Steps of the check of captures: the first fills slots, the second reads them."""
OWN_LOOP = "TensorFlow's own training loop, which stratbench cannot rewrite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A checkpoint that a capture begins with.

    Attributes:
        path: absolute path. step: number of steps before it; None if it has none.
    """

    path: Path
    step: int | None

    @property
    def note(self) -> str:
        when = "" if self.step is None else f", made after {self.step} steps"
        return f"began with the checkpoint {self.path}{when}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """A captured workload on disk, visible to workers.

    Attributes:
        restored: checkpoint with its initial values; None for the workload's own.
    """

    folder: Path
    facts: CapturedWorkload
    restored: Restored | None = None

    @property
    def summary(self) -> StepSummary:
        return self.facts.summary


class Memo:
    """Values by key, each computed once; user's mistakes are stored, too.

    A user's mistake would happen again. Any other failure is retried once, and stored if it happens again.
    """

    def __init__(self) -> None:
        self._values: dict[object, object] = {}
        self._mistakes: dict[object, CaseError] = {}
        self._has_failed: set[object] = set()

    def get(self, key: object, make: Callable[[], Value]) -> Value:
        """Value of a key, computed when first requested."""
        if key in self._mistakes:
            raise self._mistakes[key]
        if key not in self._values:
            try:
                self._values[key] = make()
            except CaseError as error:
                if error.kind in (USER_ERROR, UNSUPPORTED) or key in self._has_failed:
                    self._mistakes[key] = error
                self._has_failed.add(key)
                raise
        return cast("Value", self._values[key])


class Captures:
    """Captures, batches, references and verdicts in one folder, each made when first requested.

    A capture that failed because of a user's mistake, or failed twice, is not repeated with the same batch:
    the same error is raised again. All methods raise a CaseError for anything that cannot be made.

    Args:
        call: runs the jobs that make them.
        seed: seed of models and data.
        n_batches: most batches that a case can use. n_least: least number.
        restore: checkpoint with the initial values; None for the workload's own.
        worker_path: path of this process → the same path for jobs.
        timeouts: limits of the jobs.
        n_check_steps: steps after which a capture is compared with the workload's own step; 0 to skip this.
    """

    def __init__(
        self,
        folder: Path,
        call: CallsJobs,
        *,
        seed: int,
        n_batches: int,
        n_least: int,
        restore: Path | None = None,
        worker_path: Callable[[Path], Path] = Path.absolute,
        timeouts: Timeouts = USUAL,
        n_check_steps: int = 0,
    ) -> None:
        self._folder = folder
        self._timeouts = timeouts
        self._worker_path = worker_path
        self._restore = None if restore is None else normalised(restore)
        self._call = call
        self._n_check_steps = n_check_steps
        self._seed = seed
        self.n_batches, self._n_least = n_batches, n_least
        self._capture_s: dict[Path, float] = {}
        self._check_s: dict[tuple[Path, Topology | str, bool], float] = defaultdict(float)
        self._tried_with: dict[object, object] = {}
        self._memo = Memo()
        self._numbers = itertools.count()

    def of(self, case: Case) -> Capture:
        """Capture of a case's workload in the case's precision, for its devices."""
        free = self._for_sessions(case)
        if case.shape.hardware != "tpu":
            return free
        rules = {v.name: v.rule for v in free.summary.variables if v.rule is not None}
        key = (*_capture_key(case), *_batch_key(case), "compiled")
        return self._memo.get(key, lambda: self._capture(case, compiled_rules=rules))

    def _for_sessions(self, case: Case) -> Capture:
        key = _capture_key(case)
        own = (*key, *_batch_key(case))

        def make() -> Capture:
            self._tried_with[key] = own
            return self._capture(case)

        try:
            capture = self._memo.get(key, make)
        except CaseError as error:
            # The batch may be the reason, and this case has another one.
            if error.kind not in (USER_ERROR, UNSUPPORTED) or self._tried_with[key] == own:
                raise
        else:
            if _fits(capture, case):
                return capture
        return self._memo.get(own, lambda: self._capture(case))

    def batches(self, case: Case, capture: Capture) -> Path:
        """Folder of the first global batches of a case."""
        size = global_batch(case, capture.facts.batch_size)
        return self._memo.get(("batches", _data_key(case), size), lambda: self._lay_batches(case))

    def separability(self, case: Case, topology: Topology) -> Separability:
        """Compare the shards of a case's batch with what its step means on the whole of it."""
        # A step for devices accepts only one replica's examples.
        free = self._for_sessions(case)
        steps = self._steps(case, free, 1)
        return self._checked(jobs.separability, steps, topology, capture=free, of=topology)

    def reference(
        self, case: Case, capture: Capture, topology: Topology, n_steps: int, *, float64: bool = False
    ) -> Reference:
        """Reference of a case's step on its topology, in float64 or the step's own types."""
        steps = self._steps(case, capture, n_steps, float64=float64)
        return self._checked(jobs.reference, steps, topology, capture=capture, of=topology, is_late=float64)

    def more_tolerances(self, case: Case, capture: Capture, topology: Topology, n_steps: int) -> Tolerances:
        """Tolerances of a case's reference in the step's own types, by more references."""
        steps = self._steps(case, capture, n_steps)
        of = f"{case.id} again"
        return self._checked(jobs.more_tolerances, steps, topology, capture=capture, of=of, is_late=True)

    def verdict_in_float64(self, case: Case, capture: Capture, plan: Plan, n_steps: int) -> Verdict:
        """Verdict on a plan in float64, with all workers in one process."""
        topology = replace(topology_of_case(case, capture), device=plan.device)
        reference = self.reference(case, capture, topology, n_steps, float64=True)
        job = partial(jobs.verdict, reference=reference)
        steps = self._steps(case, capture, n_steps, float64=True)
        return self._checked(job, steps, plan, capture=capture, of=case.id, is_late=True)

    def bounds(
        self, case: Case, capture: Capture, plan: Plan, n_steps: int, *, float64: bool
    ) -> BoundVerdict:
        """Compare a compressed strategy's losses with its bounds, in float64 or the step's own types."""
        steps = self._steps(case, capture, n_steps, float64=float64)
        return self._checked(jobs.bounds, steps, plan, capture=capture, of=case.id)

    def evaluated(self, case: Case, capture: Capture, values: Mapping[str, Array]) -> Mapping[str, float]:
        """Metrics of a case's workload with given values of its variables."""
        limits = self._timeouts.for_model(capture.summary, 1)
        args = (case, self._seed, str(capture.folder), values)
        return self._call(evaluate, args, timeout_s=limits.command_s, stage="evaluate")

    def seconds(self, case: Case, capture: Capture) -> tuple[float, float]:
        """Seconds for the capture of a case, and for its checks before workers start."""
        folders = {capture.folder, self._for_sessions(case).folder}
        checks = (topology_of_case(case, capture), case.id)
        check_s = sum(self._check_s[folder, of, False] for folder in folders for of in checks)
        return sum(self._capture_s[folder] for folder in folders), check_s

    def _steps(
        self, case: Case, capture: Capture, n_steps: int, *, float64: bool = False
    ) -> jobs.StoredSteps:
        batches = self.batches(case, capture)
        return jobs.StoredSteps(capture=capture.folder, batches=batches, n_steps=n_steps, float64=float64)

    def _checked(
        self,
        job: Job[jobs.StoredSteps, Subject, Result],
        steps: jobs.StoredSteps,
        subject: Subject,
        *,
        capture: Capture,
        of: Topology | str,
        is_late: bool = False,
    ) -> Result:
        """Run a job that checks something of a capture, within the time limit of its preparation.

        Args:
            of: topology, case or name whose checks share the limit.
            is_late: True after the workers have ended; then other checks share the limit.
        """
        topology = topology_of(subject) if isinstance(subject, Plan) else subject
        budget = (capture.folder, of, is_late)

        def make() -> Result:
            limits = self._timeouts.for_model(capture.summary, topology.n_replicas)
            left_s = limits.prepare_s - self._capture_s[capture.folder] - self._check_s[budget]
            started_s = time.monotonic()
            limit_s = max(1.0, min(limits.command_s, left_s))
            try:
                return self._call(job, (steps, subject), timeout_s=limit_s, stage="check")
            finally:
                self._check_s[budget] += time.monotonic() - started_s

        key = subject.model_dump_json() if isinstance(subject, Plan) else subject
        return self._memo.get((job_name(job), steps, key), make)

    def _capture(self, case: Case, *, compiled_rules: Mapping[str, Rule] | None = None) -> Capture:
        folder = self._folder / f"capture-{next(self._numbers)}"
        check_s = self._timeouts.command_s if self._n_check_steps else 0.0
        started_s = time.monotonic()
        facts = self._call(
            capture_workload,
            (case, self._seed, str(folder), _n_shards(case), self._n_check_steps, compiled_rules),
            timeout_s=self._timeouts.capture_s + check_s,
            stage="capture",
        )
        restored = None
        if self._restore is not None:
            args = (str(folder), str(self._worker_path(self._restore)))
            step = self._call(restore, args, timeout_s=self._timeouts.capture_s, stage="restore")
            restored = Restored(path=self._restore, step=step)
        self._capture_s[folder] = time.monotonic() - started_s
        return Capture(folder=folder, facts=facts, restored=restored)

    def _lay_batches(self, case: Case) -> Path:
        folder = self._folder / f"batches-{next(self._numbers)}"
        args = (case, self._seed, str(folder), self.n_batches, self._n_least)
        self._call(write_batches, args, timeout_s=self._timeouts.capture_s, stage="capture")
        return folder


def planned(captures: Captures, case: Case) -> tuple[Capture, Plan]:
    """Capture a case's workload and plan its strategy."""
    try:
        capture = captures.of(case)
        topology = topology_of_case(case, capture)
        plan = case.chosen.plan(capture.summary, topology)
        return capture, with_faults(plan, case.scenario.faults)
    except UsageError as error:
        raise CaseError(USER_ERROR, error.message, stage="plan", field=error.field) from error
    except UnsupportedError as error:
        raise CaseError(UNSUPPORTED, str(error), stage="plan") from error
    except StrategyError as error:
        raise CaseError(USER_ERROR, str(error), stage="plan") from error


def planned_to_run(captures: Captures, case: Case) -> tuple[Capture, Plan]:
    """Capture and plan a case for workers.

    Raises:
        CaseError: see `planned`; or no worker can run it, see `certain_refusal`.
    """
    refusal = certain_refusal(case)
    if refusal is not None:
        message = f"strategy {case.chosen.strategy.name!r}: {refusal}"
        raise CaseError(UNSUPPORTED, message, stage="plan")
    return planned(captures, case)


def with_faults(plan: Plan, faults: Sequence[Fault]) -> Plan:
    """Plan with faults of workers, and a warning if its rule does not tolerate as many.

    Raises:
        UnsupportedError: there are no such workers, or the faults have no effect on its steps.
    """
    if not faults:
        return plan
    n_workers = len(plan.replicas_per_task)
    if any(fault.worker >= n_workers for fault in faults):
        most = max(fault.worker for fault in faults)
        raise UnsupportedError(f"faults are of workers up to {most}, got {n_workers} workers; raise workers")
    try:
        check_faults(faults, n_workers)
    except StrategyError as error:
        raise UnsupportedError(str(error)) from error
    synchronizers = {node.synchronizer for node in plan.nodes}
    reason = refusal(faults, synchronizers, has_rule=plan.aggregation is not None)
    if reason is not None:
        raise UnsupportedError(f"strategy {plan.strategy!r}: {reason}")
    warnings = list(plan.warnings)
    n_faulty = len(sending_wrong(faults))
    if plan.aggregation is not None and n_faulty > plan.aggregation.f:
        warnings.append(
            f"{n_faulty} of {n_workers} workers have faults and the rule is for f={plan.aggregation.f}: what "
            "it promises is void"
        )
    return plan.model_copy(update={"faults": tuple(faults), "warnings": tuple(warnings)})


def certain_refusal(case: Case) -> str | None:
    """Reason why no worker can run a case, if known before its capture."""
    strategy, device = case.chosen.strategy, case.shape.hardware
    if case.scenario.faults and strategy.runner_on(device) != "graph":
        return f"faults are put into graphs of sessions, got {OWN_LOOP}"
    if case.computation.xla and strategy.lacks(device) is None and strategy.runner_on(device) != "graph":
        return f"must run as a graph of a session for measure.xla, got {OWN_LOOP}; compare it without xla"
    refusal = rule_refusal(case) or strategy.refuses_to_run(device, case.shape.workers)
    if refusal is not None or case.chosen.edited is not None:
        return refusal
    # The batch is not known yet: assume one example per replica, so that divisibility rules pass.
    n_replicas = case.shape.workers * case.shape.replicas_per_worker
    return refusal_of(strategy, case.chosen.params, _shape_with_batch(case, n_replicas))


def rule_refusal(case: Case) -> str | None:
    """Reason why a case's aggregation rule cannot combine its workers' gradients, or None."""
    try:
        Aggregation.of(case.chosen.params, case.shape.workers)
    except StrategyError as error:
        return str(error)
    return None


def topology_of_case(case: Case, capture: Capture) -> Topology:
    """Workers, replicas and the global batch of a case.

    Raises:
        CaseError: its strategy has no form for the device, which would stay idle with a graph for another.
    """
    lacking = case.chosen.strategy.lacks(case.shape.hardware)
    if lacking is not None:
        raise CaseError(UNSUPPORTED, f"strategy {case.chosen.strategy.name!r}: {lacking}", stage="plan")
    batch_size = global_batch(case, capture.facts.batch_size)
    return requested_topology(_shape_with_batch(case, batch_size), case.chosen.params)


def _shape_with_batch(case: Case, batch_size: int) -> Topology:
    return Topology(
        replicas_per_task=(case.shape.replicas_per_worker,) * case.shape.workers,
        batch_size=batch_size,
        device=case.shape.hardware,
        shares_devices=bool(replicas_on_gpus(case.shape)),
    )


def _fits(capture: Capture, case: Case) -> bool:
    fixed = capture.facts.replica_batch
    return fixed is None or fixed * _n_shards(case) == global_batch(case, capture.facts.batch_size)


def _n_shards(case: Case) -> int:
    return case.shape.n_replicas * Execution.of(case.chosen.params).micro_batches


def _capture_key(case: Case) -> tuple[object, ...]:
    return (*_data_key(case), case.computation.precision)


def _batch_key(case: Case) -> tuple[object, ...]:
    return _n_shards(case), case.batch_size, case.batch_rule


def _data_key(case: Case) -> tuple[object, ...]:
    return case.workload.reference, tuple(sorted(without_batch(case.workload.params).items()))
