"""One workload under one strategy, outside a run: captured and planned in a process of its own."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.cluster.shape import ClusterShape
from harness.equivalence.reference_outcome import Reference
from harness.errors import OUT_OF_MEMORY, UNSUPPORTED, CaseError, UsageError
from harness.experiment.cases import Case
from harness.measure.timeouts import Timeouts
from harness.provision.failures import USER_ERROR
from harness.provision.local.child_process import ChildProcess, child_process
from harness.provision.temporary.reaper import reap, run_folder
from harness.requests import Target
from harness.run.captures import CAPTURE_CHECK_STEPS, Capture, Captures, planned, topology_of_case
from harness.run.guards import naming_batch
from harness.run.terminal.status_line import UNWATCHED, StatusLine
from harness.worker.process.job import Args, Job, Result, job_name
from strategies.plan.schema import Plan

SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStudy:
    """A captured and planned target.

    Attributes:
        batches: folder of its first global batches.
        folder: private one of this command.
        timeouts: for this model.
    """

    case: Case
    capture: Capture
    plan: Plan
    batches: Path
    folder: Path
    timeouts: Timeouts
    _process: ChildProcess
    _captures: Captures

    def call(self, job: Job[*Args, Result], args: tuple[*Args]) -> Result:
        """Run a job in the target's process.

        Raises:
            CaseError: it failed.
        """
        return self._process.call(job, args, timeout_s=self.timeouts.study_s, stage=job_name(job))

    def reference(self, n_steps: int) -> Reference:
        """What the target must compute.

        Raises:
            CaseError: it could not be made.
        """
        return self._captures.reference(
            self.case, self.capture, topology_of_case(self.case, self.capture), n_steps
        )


def shape_of(target: Target) -> ClusterShape:
    """Workers of a target, on this host."""
    return ClusterShape(
        workers=target.workers,
        replicas_per_worker=target.replicas,
        device=target.device,
        share_gpus=target.share_gpus,
    )


@contextmanager
def study(
    target: Target,
    *,
    n_batches: int,
    timeouts: Timeouts,
    restore: Path | None = None,
    checks_capture: bool = False,
    status: StatusLine = UNWATCHED,
) -> Iterator[TargetStudy]:
    """Capture and plan a target; nothing of it is left when the context ends.

    Args:
        restore: checkpoint to begin with.
        checks_capture: compare the capture with the workload's own step.
        status: where to say what is going on.
    Raises:
        UsageError: the target cannot be used. CaseError: anything else went wrong.
    """
    asked = target.workload.params.get("batch_size")
    case = Case(
        id="",
        workload=target.workload,
        strategy=target.strategy,
        shape=shape_of(target),
        batch_size=asked if isinstance(asked, int) else None,
    )
    reap()
    with ExitStack() as stack:
        folder = stack.enter_context(run_folder())
        process = stack.enter_context(child_process(folder))
        captures = Captures(
            folder,
            process.call,
            seed=SEED,
            n_batches=n_batches,
            n_least=n_batches,
            restore=restore,
            timeouts=timeouts,
            n_check_steps=CAPTURE_CHECK_STEPS if checks_capture else 0,
        )
        try:
            with status.doing(f"starting TensorFlow and capturing {case.workload_name}"):
                capture, plan = planned(captures, case)
                with naming_batch(case.workload_name, plan.batch_size):
                    batches = captures.batches(case, capture)
            with naming_batch(case.workload_name, plan.batch_size):
                yield TargetStudy(
                    case=case,
                    capture=capture,
                    plan=plan,
                    batches=batches,
                    folder=folder,
                    # Workers share the process.
                    timeouts=timeouts.for_model(capture.summary, case.shape.n_replicas),
                    _process=process,
                    _captures=captures,
                )
        except CaseError as error:
            if error.kind in (USER_ERROR, UNSUPPORTED, OUT_OF_MEMORY):
                raise UsageError(error.message, field=error.field) from error
            raise
