"""Files of pytest-benchmark become nights of the same history."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from reports.history.database import HistoryError
from reports.history.figures import BENCHMARKS, NewNight
from reports.history.pytest_benchmark_files import benchmarks_night
from reports.history.store import writing
from reports.history.verdicts import verdict_of

BENCHMARK = """
def test_sum(benchmark):
    assert benchmark.pedantic(sum, args=[range(1000)], rounds=5) == 499500
"""


EXTRA = {
    "workload": "wide-mlp",
    "strategy": "ps:staleness=2",
    "repeats": 4,
    "payload_bytes_per_step": 1e6,
    "tcp_bytes_per_step": 1.1e6,
    "peak_rss_bytes": 4e8,
    "examples_per_s": 640.0,
    "comparison_key": "36174b8c68e07d97",
    "lock_hash": "f6511368",
}


def night_of(path: Path) -> NewNight:
    """The night of a file of which everything can be used."""
    return benchmarks_night(path, notify=pytest.fail)


def written(
    folder: Path, day: int, median: float, *, extra: dict[str, Any] | None = None, **machine: Any
) -> Path:
    document = {
        "datetime": f"2026-03-{day:02d}T03:00:00.123456+00:00",
        "machine_info": {"machine": "x86_64", "cpu": {"brand_raw": "Example"}, **machine},
        "commit_info": {"id": f"{day:040x}", "dirty": False},
        "benchmarks": [
            {
                "fullname": "tests/test_a.py::test_sum",
                "name": "test_sum",
                "group": None,
                "extra_info": extra or {},
                "stats": {"median": median, "stddev": median / 100, "rounds": 25},
            }
        ],
    }
    path = folder / f"{day}-{len(list(folder.iterdir()))}.json"
    path.write_text(json.dumps(document))
    return path


def test_a_file_as_it_is_written_becomes_a_night(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(BENCHMARK)
    command = [sys.executable, "-m", "pytest", "-q", "--benchmark-json", "out.json", "-p", "no:cacheprovider"]
    # Among several processes of tests none would be timed.
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    subprocess.run(command, cwd=tmp_path, env=alone, check=True, capture_output=True, timeout=120)
    with writing(tmp_path / "store") as history:
        night = history.add(night_of(tmp_path / "out.json"))
        (series,) = history.series()
        assert series.subject.metric == "seconds"
        assert series.subject.strategy == "test_sum"
        assert 0 < series.values[0] < 1
        assert verdict_of(history, night).counts["new"] == 1
        assert history.add(night_of(tmp_path / "out.json")) == night


def test_slower_is_worse_and_another_machine_another_series(tmp_path: Path) -> None:
    with writing(tmp_path / "store") as history:
        for day in range(1, 21):
            night = history.add(night_of(written(tmp_path, day, 0.010 if day < 16 else 0.012)))
        (regressed,) = verdict_of(history, night).regressed
        assert regressed.since is not None
        assert (regressed.since.name, regressed.since.git_sha) == ("2026-03-16", f"{16:040x}")
        other = history.add(night_of(written(tmp_path, 21, 0.02, python_version="3.14")))
        assert verdict_of(history, other).counts["new"] == 1


def test_each_machine_is_judged_by_the_newest_night_that_it_has(tmp_path: Path) -> None:
    with writing(tmp_path / "store") as history:
        for day in range(1, 21):
            history.add(night_of(written(tmp_path, day, 0.010 if day < 16 else 0.012)))
            last = history.add(night_of(written(tmp_path, day, 0.010, cpu={"brand_raw": "Other"})))
        verdict = verdict_of(history, last)
    assert [regressed.series.subject.shape for regressed in verdict.regressed] == ["Example"]
    assert verdict.counts["missed"] == 0


def test_a_case_is_followed_by_all_that_it_costs(tmp_path: Path) -> None:
    with writing(tmp_path / "store") as history:
        history.add(night_of(written(tmp_path, 1, 0.01, extra=EXTRA)))
        series = {series_item.subject.metric: series_item for series_item in history.series()}
    values = {metric: series_item.values[0] for metric, series_item in series.items()}
    assert values == {"seconds": 0.01, "payload_bytes": 1e6, "tcp_bytes": 1.1e6, "peak_rss_bytes": 4e8}
    for series_item in series.values():
        assert (series_item.subject.workload, series_item.subject.strategy) == ("wide-mlp", "ps:staleness=2")
        assert (series_item.subject.case, series_item.subject.lock_hash) == (
            "tests/test_a.py::test_sum",
            "f6511368",
        )
    # One per cent by four repeats, however many windows these have.
    assert series["seconds"].errors[0] == pytest.approx(0.01 / 2)


def test_one_repeat_knows_no_error_of_its_own(tmp_path: Path) -> None:
    with writing(tmp_path / "store") as history:
        history.add(night_of(written(tmp_path, 1, 0.01, extra={**EXTRA, "repeats": 1})))
        (seconds,) = (
            series_item for series_item in history.series() if series_item.subject.metric == "seconds"
        )
    assert math.isnan(seconds.errors[0])


@pytest.mark.parametrize("changed", [{"comparison_key": "0000"}, {"lock_hash": "0000"}])
def test_another_method_or_lock_file_begins_new_series(tmp_path: Path, changed: dict[str, str]) -> None:
    with writing(tmp_path / "store") as history:
        history.add(night_of(written(tmp_path, 1, 0.01, extra=EXTRA)))
        history.add(night_of(written(tmp_path, 2, 0.01, extra=EXTRA)))
        assert len(history.series()) == 4
        history.add(night_of(written(tmp_path, 3, 0.01, extra={**EXTRA, **changed})))
        assert len(history.series()) == 8


def test_what_is_not_known_of_a_case_is_left_out(tmp_path: Path) -> None:
    extra = {**EXTRA, "payload_bytes_per_step": 0.0, "tcp_bytes_per_step": None, "peak_rss_bytes": "much"}
    with writing(tmp_path / "store") as history:
        history.add(night_of(written(tmp_path, 1, 0.01, extra=extra)))
        assert [series_item.subject.metric for series_item in history.series()] == ["seconds"]


def with_medians(path: Path, *medians: float | None) -> Path:
    """A file of as many benchmarks, each with its median."""
    document = json.loads(path.read_text())
    (benchmark,) = document["benchmarks"]
    document["benchmarks"] = [
        {
            **benchmark,
            "fullname": f"tests/test_a.py::test_{number}",
            "name": f"test_{number}",
            "stats": {**benchmark["stats"], "median": median},
        }
        for number, median in enumerate(medians)
    ]
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("median", [math.nan, math.inf, 0.0, -1.0, None])
def test_a_benchmark_without_a_median_is_named_and_the_others_are_kept(
    tmp_path: Path, median: float | None
) -> None:
    path = with_medians(written(tmp_path, 1, 0.01, extra=EXTRA), 0.01, median, 0.02)
    lines: list[str] = []
    with writing(tmp_path / "store") as history:
        night = history.add(benchmarks_night(path, notify=lines.append))
        series = history.series()
        (lost,) = verdict_of(history, night).lost
    assert {series_item.subject.case for series_item in series} == {
        f"tests/test_a.py::test_{number}" for number in (0, 2)
    }
    why = f"its median must be more than 0 s and finite, got {median}"
    assert lines == [f"left out: {path}: tests/test_a.py::test_1: {why}"]
    assert (lost.case, lost.message) == ("tests/test_a.py::test_1", why)


def test_a_deviation_that_is_no_number_leaves_the_median(tmp_path: Path) -> None:
    path = written(tmp_path, 1, 0.01)
    document = json.loads(path.read_text())
    document["benchmarks"][0]["stats"]["stddev"] = math.nan
    path.write_text(json.dumps(document))
    (figure,) = night_of(path).figures
    assert (figure.value, figure.error) == (0.01, None)


def test_a_file_of_which_nothing_can_be_used_is_refused_alone_and_left_out_beside_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unusable = with_medians(written(tmp_path, 1, 0.01), math.nan, 0.0)
    empty = with_medians(written(tmp_path, 2, 0.01))
    good = written(tmp_path, 3, 0.01)
    store = tmp_path / "store"
    command = ["nightly", "import", BENCHMARKS, "--store", str(store), "--json"]
    why = (
        f"{unusable} has no usable benchmark: tests/test_a.py::test_0: its median must be more "
        "than 0 s and finite, got nan, and so for all 2; run them again"
    )
    assert main([*command, str(unusable), str(empty)]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["message"] == why
    assert not store.exists()
    assert main([*command, str(unusable), str(empty), str(good)]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["night"] == "2026-03-03"
    assert f"left out: {why}" in captured.err
    assert f"left out: {empty} must contain benchmarks, got none; name another" in captured.err


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"benchmarks": [{}], "datetime": "2026-01-01"}', '{"benchmarks": [], "datetime": "x"}'],
)
def test_what_is_no_such_file_is_refused_and_leaves_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(text)
    with writing(tmp_path / "store") as history:
        with pytest.raises(HistoryError, match="must be a file of pytest-benchmark, got"):
            history.add(night_of(path))
        assert history.nights() == []


def test_the_text_of_another_file_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    path.write_text("root:secret\n")
    with pytest.raises(HistoryError, match="got its text: Invalid JSON") as refused:
        night_of(path)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"commit_info": {"id": ["x"]}}, r"commit_info.id: .*received \['x'\]"),
        ({"commit_info": {"dirty": {}}}, "commit_info.dirty: "),
        ({"datetime": "0001-01-01T00:00:00+05:00"}, "date value out of range"),
        ({"benchmarks": 2}, "2 benchmarks with the name tests/test_a.py::test_sum"),
        ({"machine_info": []}, "machine_info: "),
    ],
)
def test_what_a_file_says_oddly_is_named_in_a_line(tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    path = written(tmp_path, 1, 0.01)
    document = json.loads(path.read_text())
    if "benchmarks" in changed:
        changed = {"benchmarks": document["benchmarks"] * changed["benchmarks"]}
    path.write_text(json.dumps({**document, **changed}))
    with writing(tmp_path / "store") as history:
        with pytest.raises(HistoryError, match=f"must be a file of pytest-benchmark, got .*{why}") as refused:
            history.add(night_of(path))
        assert history.nights() == []
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("commit", "stored", "n_lines"),
    [
        ("a" * 64, "a" * 64, 0),
        ("unversioned", None, 0),
        ("unknown", None, 0),
        ("--output=/home/u/", None, 1),
        ("A" * 40, None, 1),
        ("a" * 40 + "\n", None, 1),
        ("HEAD", None, 1),
    ],
)
def test_a_commit_is_a_hash_in_full_or_none(
    tmp_path: Path, commit: str, stored: str | None, n_lines: int
) -> None:
    path = written(tmp_path, 1, 0.01)
    path.write_text(json.dumps({**json.loads(path.read_text()), "commit_info": {"id": commit}}))
    lines: list[str] = []
    assert benchmarks_night(path, notify=lines.append).git_sha == stored
    assert len(lines) == n_lines
    assert all(f"{path} must name its commit by 40 or 64 hex digits, got {commit!r}" in x for x in lines)
