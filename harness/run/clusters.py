"""Repeats of a run, cluster by cluster: start its workers, run all cases that share them, stop them."""

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cluster import ClusterShape, largest
from harness.errors import UsageError
from harness.experiment.cases import Case
from harness.experiment.model import Experiment
from harness.experiment.references import file_of
from harness.experiment.schedule import Slot
from harness.provision.accelerators import gpus_per_worker
from harness.provision.protocols import Cluster, Provider
from harness.provision.registry import provider_of
from harness.records.run_documents import LOGS
from harness.records.run_folder import RunFolder
from harness.requests import RunOptions
from harness.run.further_repeats import NarrowRatios, expected_s
from harness.run.progress import Progress, ratio_so_far
from harness.run.recorder import RunRecorder
from harness.run.repeats import SlotRunner
from harness.verification.captures import CAPTURE_CHECK_STEPS, Captures
from harness.verification.checks import CHECK_STEPS, n_staged
from harness.worker.jobs.gpus import require_usable_gpus
from harness.worker.process.job import Args, CallsJobs, Job, Result, job_name
from harness.written_values import normalised

if TYPE_CHECKING:
    from harness.measure.prometheus import Exporter


def run_slots(
    slots: Sequence[Slot],
    cases: Sequence[Case],
    spec: Experiment,
    options: RunOptions,
    folder: RunFolder,
    progress: Progress,
    exporter: "Exporter | None",
    then: NarrowRatios | None = None,
) -> None:
    """Run repeats and record each as it ends; repeats for which no time is left are recorded as skipped.

    Args:
        slots: remaining repeats; those of one cluster in a row, and within it those of one block.
        cases: all cases of the run.
        exporter: publishes ended repeats and current windows; None for no metrics.
        then: returns repeats that follow these; None for none.
    Raises:
        HarnessError: the run cannot go on.
    """
    deadline_s = math.inf if options.time_budget_s is None else time.monotonic() + options.time_budget_s
    recorder = RunRecorder(spec=spec, run=folder.run)
    recorder.take_up(folder.records)
    runs = _ClusterRuns(
        spec=spec,
        cases=cases,
        options=options,
        folder=folder,
        progress=progress,
        exporter=exporter,
        recorder=recorder,
        then=then,
        n_asked=1 + max((slot.order for slot in slots), default=-1),
        deadline_s=deadline_s,
        started_s=time.monotonic(),
    )
    by_cluster = runs.by_cluster(slots)
    # Starting the first cluster shows whether its workers can be had.
    for key, of_cluster in list(by_cluster.items())[1:]:
        runs.require(key, of_cluster)
    left = dict.fromkeys(slots)
    for number, (key, of_cluster) in enumerate(by_cluster.items(), start=1):
        runs.share = number / len(by_cluster)
        for slot in runs.run(key, of_cluster):
            left.pop(slot, None)
        reason = runs.reason_to_stop()
        if reason is not None and left:
            for slot in left:
                folder.append(recorder.skipped(slot, *reason))
            progress.note(f"{len(left)} repeats skipped: {reason[1]}")
            return


@dataclass(slots=True, kw_only=True)
class _ClusterRuns:
    """Runs the repeats of one cluster after the other.

    Attributes:
        n_asked: requested repeats, finished ones included.
        share: share of `at_most` after which this cluster's repeats end.
    """

    spec: Experiment
    cases: Sequence[Case]
    options: RunOptions
    folder: RunFolder
    progress: Progress
    exporter: "Exporter | None"
    recorder: RunRecorder
    then: NarrowRatios | None
    n_asked: int
    deadline_s: float
    started_s: float
    share: float = 1.0
    has_failed: bool = False

    def by_cluster(self, slots: Sequence[Slot]) -> dict[object, list[Slot]]:
        """Clusters with repeats to run, also those with further repeats only."""
        by_cluster: dict[object, list[Slot]] = {}
        for slot in slots:
            by_cluster.setdefault(slot.case.shape.cluster, []).append(slot)
        for case in self.cases:
            if case.shape.cluster not in by_cluster and self.further(case.shape.cluster):
                by_cluster[case.shape.cluster] = []
        return by_cluster

    def cases_of(self, key: object, slots: Sequence[Slot]) -> Sequence[Case]:
        """Cases of a cluster that are due; all of its cases if more repeats may follow."""
        if self.then is None:
            return list({slot.case.id: slot.case for slot in slots}.values())
        return [case for case in self.cases if case.shape.cluster == key]

    def further(self, key: object) -> Sequence[Slot]:
        if self.then is None:
            return ()
        records = self.folder.records
        first = max([self.n_asked, *(record.order + 1 for record in records)])
        return self.then.slots(self.cases_of(key, ()), records, first=first)

    def require(self, key: object, slots: Sequence[Slot]) -> None:
        cases = self.cases_of(key, slots)
        _provider(cases).require(_shape(cases))

    def run(self, key: object, slots: Sequence[Slot]) -> Iterator[Slot]:
        cases = self.cases_of(key, slots)
        with ExitStack() as stack:
            self.progress.stage("provision", f"{cases[0].shape.provider}, {_shape(cases).workers} workers")
            cluster = stack.enter_context(self._workers(cases))
            for note in cluster.facts().of_case(_shape(cases)).notes:
                self.progress.note(note)
            with self.progress.doing("starting workers"):
                cluster.wait_ready(1)
            runner = self._runner(cluster, _shape(cases))
            try:
                runner.prepare(slots, deadline_s=self.deadline_s)
            except UsageError:
                if not self.options.records_mistakes:
                    raise
            self.progress.prepared()
            yield from self._run_blocks(runner, slots)
            yield from self._go_on(runner, key)

    def _run_blocks(self, runner: SlotRunner, slots: Sequence[Slot]) -> Iterator[Slot]:
        for _, group in itertools.groupby(slots, lambda slot: slot.block):
            block = list(group)
            if self.reason_to_stop() is not None:
                return
            for slot, ended in runner.run(block):
                self.folder.append(ended.record)
                ratio = ratio_so_far(slot.case, self.cases, self.spec, self.folder.records)
                self.progress.ended(slot, ended.record, ratio)
                if self.exporter is not None:
                    self.exporter.ended(ended.record, ended.steps, self.progress.left())
                is_failure = ended.record.status == "failed" and not ended.record.is_broken_by_faults
                self.has_failed |= is_failure
                yield slot

    def _go_on(self, runner: SlotRunner, key: object) -> Iterator[Slot]:
        has_begun = True
        while has_begun and (more := self.further(key)):
            has_begun = False
            for _, group in itertools.groupby(more, lambda slot: slot.block):
                block = list(group)
                if self.reason_to_stop() is not None:
                    return
                if self._is_late(block):
                    continue
                self.progress.expect(len(block))
                for slot in self._run_blocks(runner, block):
                    has_begun = True
                    yield slot

    def _is_late(self, block: Sequence[Slot]) -> bool:
        assert self.then is not None
        return time.monotonic() + expected_s(block, self.folder.records) > self._ends_s(self.then)

    def _ends_s(self, then: NarrowRatios) -> float:
        return self.started_s + self.share * then.at_most_s

    def reason_to_stop(self) -> tuple[str, str] | None:
        """Kind and message of the reason to start no further repeat; None if there is none."""
        if time.monotonic() >= self.deadline_s:
            budget_s = self.options.time_budget_s
            return "time-budget", f"the time budget of {budget_s:g} s was used up; continue with --resume"
        if self.options.fail_fast and self.has_failed:
            return "fail-fast", "an earlier case failed; fix it and continue with --resume"
        return None

    def _workers(self, cases: Sequence[Case]) -> AbstractContextManager[Cluster]:
        return _provider(cases).start(
            _shape(cases),
            self.folder.run,
            self.folder.path / LOGS,
            replace(self.options.timeouts.start, exposure=self.options.exposure),
            reads=users_folders(cases, self.spec),
            writes=(self.folder.cases,),
        )

    def _runner(self, cluster: Cluster, shape: ClusterShape) -> SlotRunner:
        captures = Captures(
            cluster.scratch,
            self._calls_in(cluster, shape),
            seed=self.spec.measure.seed,
            n_batches=n_staged(self.spec.measure),
            n_least=CHECK_STEPS,
            restore=self.spec.checkpoint.restore,
            worker_path=cluster.worker_path,
            timeouts=self.options.timeouts,
            n_check_steps=CAPTURE_CHECK_STEPS,
        )
        return SlotRunner(
            spec=self.spec,
            cases=self.cases,
            folder=self.folder,
            cluster=cluster,
            recorder=self.recorder,
            captures=captures,
            progress=self.progress,
            exporter=self.exporter,
            timeouts=self.options.timeouts,
        )

    def _calls_in(self, cluster: Cluster, shape: ClusterShape) -> CallsJobs:
        def call(job: Job[*Args, Result], args: tuple[*Args], *, timeout_s: float, stage: str) -> Result:
            log = self.folder.path / LOGS / f"{job_name(job)}.log"
            with cluster.open_session([0], [log]) as processes:
                if shape.hardware == "gpu":
                    # Captures and references of large models take minutes: check for GPUs first.
                    own, limit_s = (0, gpus_per_worker(shape)), self.options.timeouts.server_s
                    processes.call_one(0, require_usable_gpus, own, timeout_s=limit_s, stage="provision")
                return processes.call_one(0, job, args, timeout_s=timeout_s, stage=stage)

        return call


def _provider(cases: Sequence[Case]) -> Provider:
    return provider_of(cases[0].shape.provider)


def _shape(cases: Sequence[Case]) -> ClusterShape:
    return largest([case.shape for case in cases])


def users_folders(cases: Sequence[Case], spec: Experiment) -> tuple[Path, ...]:
    """Folders that workers read, each once: of users' workloads and strategies, of the restored checkpoint.

    A file behind a link has two folders: workers open it by the link's path, and its neighbours may be in its
    real folder.
    """
    named = [file_of(case.workload.reference) for case in cases if case.workload.is_path]
    named += [file_of(case.strategy.name) for case in cases if case.strategy.is_file]
    files = {path for name in named for path in (normalised(name), name.resolve())}
    # With `..` after a link, the literal path may name a folder that does not exist.
    folders = {path.parent for path in files if path.parent.is_dir()}
    if spec.checkpoint.restore is not None:
        restore = normalised(spec.checkpoint.restore)
        folders.add(restore if restore.is_dir() else restore.parent)
    return tuple(sorted(folders))
