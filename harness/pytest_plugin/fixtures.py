"""The fixture `strategy_benchmark`: a case of an experiment, whose windows are the rounds of a benchmark."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from harness.errors import CaseError, HarnessError, UsageError
from harness.pytest_plugin.benchmarked_case import run_experiment
from harness.pytest_plugin.hooks import CLOCK, Benchmark, StepClock, record_rounds

if TYPE_CHECKING:
    from harness.experiment.model import Experiment
    from harness.pytest_plugin.benchmarked_case import BenchmarkedCase
    from harness.pytest_plugin.one_case import CaseRequest
    from harness.records.stored_run import StoredRun


Run = Callable[["Experiment", Path], "StoredRun"]


@dataclass(slots=True, kw_only=True)
class StrategyBenchmark:
    """Benchmark of a strategy, which a test calls once.

    Attributes:
        clock: timer of the benchmark.
        folder: new folder for the run.
        run: runs an experiment into a folder.
    """

    benchmark: Benchmark
    clock: StepClock
    folder: Path
    run: Run = run_experiment
    _is_used: bool = field(default=False, init=False)

    def __call__(
        self,
        experiment: str | os.PathLike[str],
        *,
        workload: str | None = None,
        strategy: str | None = None,
        workers: int | None = None,
        replicas: int | None = None,
        faults: str | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> BenchmarkedCase:
        """Run one case of an experiment on new workers; its windows become the rounds of the benchmark.

        The test fails if the case fails, is skipped or implausible, or is not equivalent. With
        `--benchmark-disable`, the case runs a single step after its check.

        Args:
            experiment: path, or name of a shipped file.
            workload: workload of the experiment, or a function of a file, such as `my_model.py:make`;
                optional if the experiment has only one.
            strategy: strategy of the experiment, such as `ps:staleness=2`; optional if it has only one.
            workers, replicas: numbers in place of the experiment's; replicas per worker.
            faults: name of a scenario of the experiment.
            settings: dotted path → value, as for `--set`: `{"measure.repeats": 3}`.
        Returns:
            The case's records and figures.
        """
        from harness.pytest_plugin.one_case import CaseRequest

        request = CaseRequest(
            experiment=os.fspath(experiment),
            workload=workload,
            strategy=strategy,
            workers=workers,
            replicas=replicas,
            faults=faults,
            settings=settings or {},
        )
        try:
            return self._benchmarked(request)
        except HarnessError as error:
            reason = str(error)
        # Not within the handler, because pytest would show both exceptions.
        raise self._failed(reason)

    def _benchmarked(self, request: CaseRequest) -> BenchmarkedCase:
        from harness.pytest_plugin.benchmarked_case import BenchmarkedCase, problem_of
        from harness.pytest_plugin.one_case import one_case, with_one_step

        if self._is_used:
            raise UsageError(
                "must be called once in a test, got a second call; give the test a parameter for each case",
                field="strategy_benchmark",
            )
        self._is_used = True
        chosen = one_case(request)
        spec = with_one_step(chosen.spec) if self.benchmark.disabled else chosen.spec
        run = self.run(spec, self.folder)
        records = tuple(record for record in run.records if record.case == chosen.case.id)
        problem = problem_of(records)
        if problem is not None:
            raise CaseError("no-result", f"{chosen.case.title}: {problem}", stage="run")
        result = BenchmarkedCase(case=chosen.case, run_dir=run.path, records=records)
        self.benchmark.group = self.benchmark.group or str(chosen.case.workload)
        self.benchmark.extra_info.update(result.extra_info())
        record_rounds(self.benchmark, self.clock, result.step_s)
        return result

    def _failed(self, reason: str) -> BaseException:
        """Failure of the test; pytest shows only its message."""

        def refuse() -> NoReturn:
            raise CaseError("no-result", reason, stage="run")

        # pytest-benchmark skips calls that raised, and warns of benchmarks that were never called.
        with contextlib.suppress(Exception):
            self.benchmark.pedantic(refuse)
        return pytest.fail.Exception(reason, pytrace=False)


@pytest.fixture
def strategy_benchmark(
    request: pytest.FixtureRequest, benchmark: Benchmark, tmp_path: Path
) -> StrategyBenchmark:
    """Function that runs a case of an experiment, with its windows as the rounds of the benchmark."""
    clock = request.node.stash.get(CLOCK, None)
    if clock is None:
        pytest.fail(
            "strategy_benchmark must be an argument of the test or of its fixtures, got it by "
            "getfixturevalue, after pytest-benchmark was set up; name it as an argument",
            pytrace=False,
        )
    return StrategyBenchmark(benchmark=benchmark, clock=clock, folder=tmp_path)
