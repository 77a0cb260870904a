"""Cost of the trend page of five years: processor time and memory of a fresh process, and its size."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from nightly_series import Kind, drawn
from pytest_benchmark.fixture import BenchmarkFixture

from reports.history.figures import METRICS, Figure, NewNight, Subject
from reports.history.store import writing

N_NIGHTS, N_SERIES = 1825, 480
KINDS: tuple[Kind, ...] = ("step", "drift", "two steps", "nothing", "nothing", "nothing")
MOST_MEMORY_BYTES = 1e9
MOST_BYTES = 5e6
LAST = datetime(2026, 11, 26, 2, tzinfo=UTC)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty strategies on four workloads, six figures of each every night."""
    folder = tmp_path_factory.mktemp("five-years")
    series = [(subject(number), *values_of(number)) for number in range(N_SERIES)]
    with writing(folder) as history:
        history.connection.execute("PRAGMA synchronous = OFF")
        for night in range(N_NIGHTS):
            figures = [
                Figure(subject=of, value=values[night], error=errors[night], n=3)
                for of, values, errors in series
                if night in values
            ]
            history.add(
                NewNight(
                    figures=figures,
                    lost=(),
                    started_utc=(LAST - timedelta(days=N_NIGHTS - 1 - night)).isoformat(),
                    experiment="five years",
                    run=f"run-{night}",
                    run_dir="",
                )
            )
    return folder


def subject(number: int) -> Subject:
    workload, strategy, metric = number // 120, number // 6 % 20, list(METRICS)[number % 6]
    return Subject(
        case=f"{workload}-{strategy}",
        workload=f"workload-{workload}",
        shape="2 workers · local · cpu",
        strategy=f"ps:staleness={strategy}",
        comparison_key="machine",
        lock_hash="lock",
        metric=metric,
        against="single" if metric == "ratio" else "",
    )


def values_of(number: int) -> tuple[dict[int, float], dict[int, float]]:
    """Value and error by night; what changes does so within the last weeks."""
    kind = KINDS[number % len(KINDS)]
    series = drawn(kind, number, n_nights=N_NIGHTS, n_after=12 if kind == "step" else None)
    nights = series.nights.tolist()
    return (
        dict(zip(nights, series.values.tolist(), strict=True)),
        dict(zip(nights, series.errors.tolist(), strict=True)),
    )


_FRESH = """
import json, pathlib, resource, sys, time
from reports.history.store import reading
from reports.history.verdicts import verdict_of
from reports.history.trend_page import trend_page
with reading(pathlib.Path(sys.argv[1])) as history:
    verdict = verdict_of(history, history.nights()[-1])
    judged_s = time.process_time()
    page = trend_page(history, verdict, lambda series: ())
most_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({
    "judged_s": judged_s, "cpu_s": time.process_time(), "most_bytes": most_bytes,
    "page_bytes": len(page.encode()), "charts": page.count("<figure"), "rows": page.count("<tr data-key"),
}))
"""


def test_trend_page_of_five_years(
    store: Path, benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    def fresh() -> dict[str, float]:
        command = [sys.executable, "-c", _FRESH, str(store)]
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
        return json.loads(answer.stdout)  # type: ignore[no-any-return]

    cost = benchmark.pedantic(fresh, rounds=1)
    benchmark.extra_info.update(cost)
    with capsys.disabled():
        sys.stdout.write(f"\ntrend page of {N_NIGHTS} nights of {N_SERIES} series: {cost['cpu_s']:.1f} s, ")
        sys.stdout.write(f"{cost['cpu_s'] - cost['judged_s']:.1f} s of them the page, ")
        sys.stdout.write(f"{cost['most_bytes'] / 1e9:.2f} GB, {cost['page_bytes'] / 1e6:.2f} MB, ")
        sys.stdout.write(f"{cost['charts']} charts\n")
    assert cost["rows"] == N_SERIES
    assert cost["most_bytes"] < MOST_MEMORY_BYTES
    assert cost["page_bytes"] < MOST_BYTES
