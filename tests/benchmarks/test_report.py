"""Cost of a report of many records, beyond reading them, which every format has to do.

Processor seconds of one process, which other programs disturb little; what is held is their ratio, and the
size of a page.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from synthetic_many_cases import write_many_cases

import reports
from harness.records.conditions import Machine, Method, Provenance
from harness.records.outcome import StepSeconds
from harness.records.record import Record, to_json
from harness.records.run_folder import open_run
from reports.load import load

N_STRATEGIES = 10
N_REPEATS = 300
# The permutation tests of ten strategies draw as many splits however few the repeats are. It was 3 while
# reading took half as long again: records were turned into JSON a second time.
MOST_OF_READING = 4.0
MOST_PAGE_BYTES = 4e6


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ten strategies that went on for hundreds of repeats."""
    path = tmp_path_factory.mktemp("many") / "run"
    experiment = {"name": "many", "compare": {"baseline": "strategy-0"}}
    with open_run(path, experiment=experiment, environment={}) as folder:
        records = [record(folder.run, s, repeat) for repeat in range(N_REPEATS) for s in range(N_STRATEGIES)]
    # Not one by one: each would wait for the disk.
    (path / "results.jsonl").write_text("".join(f"{to_json(item)}\n" for item in records))
    # Imports of the first call are no part of the times.
    load(path)
    return path


def record(run: str, strategy: int, repeat: int) -> Record:
    p50_s = 0.01 * (1 + 0.1 * strategy) * (1 + 0.01 * (repeat * 7919 % 101) / 101)
    return Record(
        run=run,
        case=f"case-{strategy}",
        repeat=repeat,
        order=repeat * N_STRATEGIES + strategy,
        workload="wide-mlp",
        strategy=f"strategy-{strategy}",
        strategy_class="exact",
        provider="local",
        device="cpu",
        workers=2,
        replicas=1,
        status="ok",
        batch_size=64,
        examples_per_s=64 / p50_s,
        step_s=StepSeconds(n=50, mean=p50_s, p50=p50_s, p90=p50_s, p99=p50_s),
        tcp_matrix=((0.0, 1e6), (1e6, 0.0)),
        loss=(2.0, 1.0),
        method=Method(seed=0, steps=50, warmup_rule="auto", interleave=True, batch_rule="global"),
        machine=Machine(cpu_model="a", n_cores=2),
        provenance=Provenance(git_sha="0" * 40, versions={"tensorflow": "2.21.0"}),
    )


@pytest.mark.parametrize("format", reports.FORMATS)
def test_report_of_many_records(
    format: str,  # noqa: A002 - as the command line calls it
    run_dir: Path,
    benchmark: BenchmarkFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    n_records = N_STRATEGIES * N_REPEATS
    reading: list[float] = []
    whole: list[float] = []

    def render() -> None:
        whole.append(processor_s(lambda: reports.render([run_dir], format)))

    # Imports of a format's first call are in the first time only, which is not the shortest.
    benchmark.pedantic(render, rounds=1)
    for _ in range(2):
        reading.append(processor_s(lambda: load(run_dir)))
        render()
    reading_s, whole_s = min(reading), min(whole)
    benchmark.extra_info.update(records=n_records, reading_s=reading_s, whole_s=whole_s)
    with capsys.disabled():
        sys.stdout.write(f"\nreport {format} of {n_records} records: {whole_s:.2f} s, ")
        sys.stdout.write(f"{whole_s / reading_s:.1f} times what reading them takes\n")
    assert whole_s < MOST_OF_READING * reading_s


def test_a_page_of_two_hundred_cases_can_be_sent(tmp_path: Path) -> None:
    run = write_many_cases(tmp_path / "run", n_shapes=5, n_strategies=40, n_repeats=3)
    assert len(reports.render([run], "html").encode()) < MOST_PAGE_BYTES


def processor_s(work: Callable[[], object]) -> float:
    started_s = time.process_time()
    work()
    return time.process_time() - started_s
