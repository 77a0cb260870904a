"""The plugin as pytest and pytest-benchmark see it, with runs that somebody else has made.

What it needs of pytest-benchmark is held here against the version that is installed.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reports.history.pytest_benchmark_files import benchmarks_night
from reports.history.store import writing

TESTS = Path(__file__).parents[3]
UNUSED = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:xdist")
CONFTEST = """
import dataclasses
import json

import pytest
from synthetic_run import DIED, Case, write_run

from harness.experiment.cases import expand
from harness.records.stored_run import load_run


@pytest.fixture
def of_run(strategy_benchmark, tmp_path):
    '''The fixture, of which runs are synthetic.'''

    def of(**about):
        def run(spec, folder):
            (case,) = expand(spec)
            (folder / "spec.json").write_text(json.dumps([spec.measure.steps, spec.measure.repeats]))
            fields = {"workload": "wide-mlp", "strategy": "ps", "price_per_hour": None, **about}
            n_repeats = spec.measure.repeats
            path = write_run(
                folder / "run", [Case(**fields)], n_repeats=n_repeats, baseline="ps", minutes=(1.0, 1.2)
            )
            stored = load_run(path)
            records = tuple(dataclasses.replace(record, case=case.id) for record in stored.records)
            return dataclasses.replace(stored, records=records)

        strategy_benchmark.run = run
        return lambda **more: strategy_benchmark("quickstart", workload="wide-mlp", strategy="ps", **more)

    return of
"""
GOOD = """
import json
import pathlib

import pytest


def test_good(of_run, benchmark, tmp_path):
    result = of_run()(settings={"measure.repeats": 2})
    assert len(result.records) == 2
    pathlib.Path("step_s.json").write_text(json.dumps(result.step_s))
    pathlib.Path("spec.json").write_text((tmp_path / "spec.json").read_text())


@pytest.mark.benchmark(group="of the user", min_rounds=2)
def test_grouped(of_run):
    of_run()()


def test_plain(benchmark):
    benchmark.pedantic(sum, args=[[1]], rounds=3)


def test_no_benchmark():
    pass
"""
BAD = """
from synthetic_run import DIED


def test_failed(of_run):
    of_run(problems={1: ("failed", DIED)})()


def test_wrong(of_run):
    of_run(equivalent=False)()


def test_several(strategy_benchmark):
    strategy_benchmark("quickstart", workload="wide-mlp")


def test_twice(of_run):
    benchmarked = of_run()
    benchmarked()
    benchmarked()


def test_late(request):
    request.getfixturevalue("strategy_benchmark")
"""


@dataclass(frozen=True, kw_only=True)
class Session:
    folder: Path
    status: int
    output: str

    @property
    def benchmarks(self) -> dict[str, Any]:
        document = json.loads((self.folder / "out.json").read_text())
        return {benchmark["name"]: benchmark for benchmark in document["benchmarks"]}


def session(folder: Path, source: str, options: Sequence[str] = ()) -> Session:
    """pytest in a folder with one file of tests."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_inner.py").write_text(source)
    # Among several processes of tests none would be timed.
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(TESTS)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *UNUSED, "-rA", *options],
        cwd=folder,
        env={**alone, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Session(folder=folder, status=done.returncode, output=done.stdout + done.stderr)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Session:
    options = ["--benchmark-json", "out.json", "--strict-markers", "--benchmark-only"]
    ended = session(tmp_path_factory.mktemp("good"), GOOD, options)
    assert ended.status == 0, ended.output
    return ended


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return session(tmp_path_factory.mktemp("bad"), BAD, ["--benchmark-json", "out.json"])


def test_rounds_are_the_windows_of_all_repeats(good: Session) -> None:
    """If this fails with a new pytest-benchmark, see `step_clock`."""
    step_s = json.loads((good.folder / "step_s.json").read_text())
    benchmark = good.benchmarks["test_good"]
    assert len(step_s) == 2 * 10
    assert benchmark["stats"]["data"] == step_s
    assert (benchmark["stats"]["rounds"], benchmark["stats"]["iterations"]) == (20, 1)
    assert benchmark["options"]["timer"] == "stratbench"
    assert re.search(r"benchmark 'wide-mlp': 1 tests", good.output)


def test_what_a_case_says_besides_is_extra_info(good: Session) -> None:
    extra = good.benchmarks["test_good"]["extra_info"]
    assert (extra["workload"], extra["strategy"], extra["equivalence"]) == ("wide-mlp", "ps", "equivalent")
    assert (extra["repeats"], extra["payload_bytes_per_step"]) == (2, 1e6)
    assert re.fullmatch(r"wide-mlp-ps-2x1-\w{8}", extra["case"])


def test_options_of_the_users_own_stay(good: Session) -> None:
    assert good.benchmarks["test_grouped"]["group"] == "of the user"
    assert good.benchmarks["test_grouped"]["options"]["min_rounds"] == 2


def test_other_benchmarks_are_left_alone(good: Session) -> None:
    plain = good.benchmarks["test_plain"]
    assert plain["options"]["timer"] == "perf_counter"
    assert (plain["extra_info"], plain["stats"]["rounds"]) == ({}, 3)


def test_its_file_becomes_a_night(good: Session, tmp_path: Path) -> None:
    with writing(tmp_path / "store") as history:
        history.add(benchmarks_night(good.folder / "out.json", notify=pytest.fail))
        series = {
            series.subject.metric: series
            for series in history.series()
            if series.subject.case.endswith("test_good")
        }
    assert set(series) == {"seconds", "payload_bytes", "tcp_bytes", "peak_rss_bytes"}
    assert series["seconds"].values[0] == good.benchmarks["test_good"]["stats"]["median"]
    subject = series["payload_bytes"].subject
    assert (subject.workload, subject.strategy) == ("wide-mlp", "ps")
    assert series["payload_bytes"].values[0] == 1e6


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "failed",
            r"wide-mlp ps 2x1: failed: worker-died: worker 1 was killed by signal 9 \(out of memory\?\)",
        ),
        ("wrong", r"wide-mlp ps 2x1: is not equivalent to one device: .+"),
        ("several", r"strategy_benchmark: must be one case of quickstart, got 5: wide-mlp single 1x1, .+"),
        ("twice", r"strategy_benchmark: must be called once in a test, got a second call; .+"),
        ("late", r"strategy_benchmark must be an argument of the test or of its fixtures, got .+"),
    ],
)
def test_what_is_no_result_fails_the_test_in_one_line(bad: Session, name: str, reason: str) -> None:
    (output,) = re.findall(rf"^_+ test_{name} _+\n((?:[^_=].*\n)+)", bad.output, re.MULTILINE)
    assert re.fullmatch(reason + "\n", output)


def test_what_is_no_result_is_no_benchmark(bad: Session) -> None:
    assert bad.status == 1
    assert bad.benchmarks == {}
    # Of the late one alone.
    assert bad.output.count("was not used at all") == 1


def test_a_disabled_benchmark_takes_a_step_of_one_repeat(tmp_path: Path) -> None:
    # The assertion is that of a run with all repeats.
    ended = session(tmp_path, GOOD.replace("== 2", "== 1"), ["--benchmark-disable"])
    assert ended.status == 0, ended.output
    assert json.loads((tmp_path / "spec.json").read_text()) == [1, 1]


def test_skipped_and_chosen_like_other_benchmarks(good: Session, tmp_path: Path) -> None:
    assert "3 passed, 1 skipped" in good.output
    skipped = session(tmp_path, GOOD, ["--benchmark-skip"])
    assert "1 passed, 3 skipped" in skipped.output


def test_without_pytest_benchmark_other_tests_run(tmp_path: Path) -> None:
    source = "def test_it(strategy_benchmark):\n    pass\n\n\ndef test_other():\n    pass\n"
    ended = session(tmp_path, source, ["-p", "no:benchmark", "--strict-markers"])
    assert ended.status == 1
    assert "1 passed, 1 error" in ended.output
    line = "strategy_benchmark needs the plugin pytest-benchmark, got none; `pip install pytest-benchmark`"
    assert re.search(rf"^{re.escape(line)}", ended.output, re.MULTILINE)


def test_loading_it_costs_nothing() -> None:
    source = """
import sys
import pytest
before = set(sys.modules)
import harness.pytest_plugin.hooks, harness.pytest_plugin.fixtures
heavy = {"tensorflow", "keras", "ray", "numpy", "scipy", "yaml", "pydantic", "typer", "docker", "jinja2"}
print(sorted(heavy & (set(sys.modules) - before)), len(set(sys.modules) - before))
"""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True
    )
    heavy, _, n_modules = done.stdout.rpartition(" ")
    assert heavy == "[]"
    assert int(n_modules) < 20
