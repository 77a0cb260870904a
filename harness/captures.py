"""Captures of a run: each workload is captured once, however many cases, strategies and repeats use it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.equivalence import Reference
from harness.errors import CaseError
from harness.matrix import Case, global_batch
from harness.provision.failures import USER_ERROR
from harness.worker.study import CapturedWorkload
from strategies.plan import StepSummary
from strategies.topology import Topology

STUDY = "harness.worker.study"
CAPTURE_S = 300.0


class Job(Protocol):
    """Runs a job in a fresh process, or in one that only such jobs share."""

    def __call__(self, function: str, args: tuple[object, ...], *, timeout_s: float, stage: str) -> object:
        """Run `package.module:function(state, *args)` and return what it returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """A captured workload on disk."""

    folder: Path
    summary: StepSummary
    facts: CapturedWorkload


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    error: CaseError


class Captures:
    """Captures, batches and references under one folder, each made when it is first asked for.

    Args:
        job: where they are made.
        seed: of models and data.
        n_batches: how many different batches a case can use. n_least: how many it must have.
    """

    def __init__(self, folder: Path, job: Job, *, seed: int, n_batches: int, n_least: int) -> None:
        self._folder = folder
        self._job = job
        self._seed = seed
        self._n_batches, self._n_least = n_batches, n_least
        self._captures: dict[object, Capture | _Failed] = {}
        self._batches: dict[object, Path] = {}
        self._references: dict[object, Reference] = {}

    def of(self, case: Case) -> Capture:
        """The capture of a case's workload.

        Raises:
            CaseError: it cannot be captured; asked again, the same error.
        """
        key: tuple[object, ...] = _workload_key(case)
        known = self._captures.get(key)
        if isinstance(known, Capture) and not self._fits(known, case):
            key = (*key, case.n_replicas, case.batch_size, case.batch_rule)
        return self._once(self._captures, key, lambda: self._capture(case))

    def batches(self, case: Case, capture: Capture) -> Path:
        """Folder of the first global batches of a case."""
        size = global_batch(case, capture.facts.batch_size)
        key = (_workload_key(case), size)
        if key not in self._batches:
            folder = self._folder / f"batches-{len(self._batches)}"
            args = (case, self._seed, str(folder), self._n_batches, self._n_least)
            self._job(f"{STUDY}:lay_batches", args, timeout_s=CAPTURE_S, stage="capture")
            self._batches[key] = folder
        return self._batches[key]

    def reference(self, case: Case, capture: Capture, topology: Topology, n_steps: int) -> Reference:
        """The reference of a case's step on its topology."""
        key = (capture.folder, topology, n_steps)
        if key not in self._references:
            args = (str(capture.folder), str(self.batches(case, capture)), topology, n_steps)
            made = self._job(f"{STUDY}:reference", args, timeout_s=CAPTURE_S, stage="check")
            assert isinstance(made, Reference)
            self._references[key] = made
        return self._references[key]

    def _capture(self, case: Case) -> Capture:
        folder = self._folder / f"capture-{len(self._captures)}"
        facts = self._job(
            f"{STUDY}:capture", (case, self._seed, str(folder)), timeout_s=CAPTURE_S, stage="capture"
        )
        assert isinstance(facts, CapturedWorkload)
        summary = StepSummary.model_validate_json((folder / "summary.json").read_text())
        return Capture(folder=folder, summary=summary, facts=facts)

    def _fits(self, capture: Capture, case: Case) -> bool:
        fixed = capture.facts.replica_batch
        return fixed is None or fixed * case.n_replicas == global_batch(case, capture.facts.batch_size)

    @staticmethod
    def _once(known: dict[object, Capture | _Failed], key: object, make: Callable[[], Capture]) -> Capture:
        """A user's mistake is the same mistake for every case; anything else may go better next time."""
        found = known.get(key)
        if found is None:
            try:
                found = known[key] = make()
            except CaseError as error:
                if error.kind == USER_ERROR:
                    known[key] = _Failed(error=error)
                raise
        if isinstance(found, _Failed):
            raise found.error
        return found


def topology_of_case(case: Case, capture: Capture) -> Topology:
    """Workers, replicas and the global batch of a case."""
    size = global_batch(case, capture.facts.batch_size)
    return Topology(
        replicas_per_task=(case.replicas,) * case.workers,
        batch_size=size,
        device="gpu" if case.device == "gpu" else "cpu",
    )


def _workload_key(case: Case) -> tuple[str, tuple[tuple[str, object], ...]]:
    params: Mapping[str, object] = case.workload.params
    return case.workload.reference, tuple(sorted((k, v) for k, v in params.items() if k != "batch_size"))
