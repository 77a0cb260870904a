"""`stratbench nightly` without a run: what is imported again, replayed, known, or of another experiment."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from synthetic_run import Case, write_run

from harness.cli import main
from harness.cli.nightly import trend_file
from harness.cli.nightly.night_answer import night_answer
from harness.cli.nightly.publishing import PublishedNight
from reports.history.figures import Figure, Subject
from reports.history.store import reading, writing
from reports.history.verdicts import verdict_of
from reports.trend.page import trend_page

BEGAN = datetime(2026, 1, 5, 2, tzinfo=UTC)
SLOWER_SINCE, N_NIGHTS = 15, 19
LAST, SINCE = "2026-01-23", "2026-01-20"


class Store:
    """A history whose `ps` has got slower, and the command on it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path, self.folder, self.capsys = folder / "store", folder, capsys
        self.page = self.path / "trend.html"

    def nights(
        self, experiment: str, *, strategies: Sequence[str] = ("ps", "all-reduce"), days: int = 0
    ) -> None:
        """Nights of an experiment, in which `ps` gets slower; `days` later than those of others."""
        rng = np.random.default_rng(4)
        with writing(self.path) as history:
            for number in range(N_NIGHTS):
                history.add(
                    [
                        Figure(subject=subject(name), value=_rate(name, number, rng), error=None, n=3)
                        for name in strategies
                    ],
                    (),
                    started_utc=(BEGAN + timedelta(days=number + days)).isoformat(),
                    experiment=experiment,
                    run=f"{experiment}-{number}",
                    run_dir="",
                )

    def benchmarks(self, day: int, *, median: float = 0.1, test_file: str = "a.py", hour: int = 3) -> Path:
        """A file of pytest-benchmark of a day of January, of one test file."""
        stats = {"median": median, "stddev": 0.001, "rounds": 5}
        file = self.folder / f"{day}-{median}-{test_file}.json"
        document = {
            "datetime": f"2026-01-{day:02d}T{hour:02d}:00:00+00:00",
            "benchmarks": [{"fullname": f"{test_file}::test_b", "name": "test_b", "stats": stats}],
        }
        file.write_text(json.dumps(document))
        return file

    def called(self, *arguments: str, experiment: str = "quickstart") -> tuple[int, list[str], list[str]]:
        """Status, lines of the answer and lines beside it."""
        status = main(["nightly", experiment, "--store", str(self.path), *arguments])
        captured = self.capsys.readouterr()
        return status, captured.out.splitlines(), captured.err.splitlines()

    def said(self, *arguments: str, experiment: str = "quickstart") -> tuple[int, dict[str, Any]]:
        status, out, _ = self.called("--json", *arguments, experiment=experiment)
        return status, json.loads("\n".join(out))


def older(store: Store, days: float, value: float) -> None:
    """A night of `ps` that is written after all that began later."""
    with writing(store.path) as history:
        history.add(
            [Figure(subject=subject("ps"), value=value, error=None, n=3)],
            (),
            started_utc=(BEGAN + timedelta(days=days)).isoformat(),
            experiment="quickstart",
            run="older",
            run_dir="",
        )


def subject(strategy: str) -> Subject:
    return Subject(
        case=f"w-{strategy}",
        workload="w",
        shape="2 workers",
        strategy=strategy,
        comparison_key="k",
        lock_hash="l",
        metric="rate",
    )


def _rate(strategy: str, number: int, rng: np.random.Generator) -> float:
    slower = 0.7 if strategy == "ps" and number >= SLOWER_SINCE else 1.0
    return 1000.0 * slower * float(np.exp(rng.normal(0, 0.005)))


@pytest.fixture
def store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Store:
    return Store(tmp_path, capsys)


def test_a_run_that_is_there_already_leaves_the_page_to_the_newest_night(store: Store) -> None:
    old, new = store.benchmarks(5), store.benchmarks(8)
    _, out, err = store.called("--import", str(old), "--import", str(new), experiment="pytest-benchmark")
    assert err == [f"2026-01-05: {old}", f"2026-01-08: {new}"]
    _, out, err = store.called("--import", str(old), experiment="pytest-benchmark")
    assert err == [f"2026-01-05: already in the history: {old}"]
    assert out[0].startswith("2026-01-08: ")
    assert out[-1] == f"report: {store.page}"
    assert "night 2026-01-08</title>" in store.page.read_text()


def test_a_night_that_joins_between_others_does_not_put_the_page_back(store: Store) -> None:
    store.called("--import", str(store.benchmarks(8)), experiment="pytest-benchmark")
    _, said = store.said("--import", str(store.benchmarks(6)), experiment="pytest-benchmark")
    assert said["night"] == "2026-01-08"
    assert "2 nights so far" in store.page.read_text()


def test_a_replayed_night_has_a_page_of_its_own(store: Store) -> None:
    store.nights("quickstart")
    store.called("--replay", LAST)
    live = store.page.read_text()
    status, out, err = store.called("--replay", SINCE)
    page = store.path / f"night-{SINCE}.html"
    assert status == 0
    assert out[-1] == f"report: {page}"
    assert err == [f"{page} is the page of {SINCE}; trend.html stays that of {LAST}"]
    assert f"night {SINCE}</title>" in page.read_text()
    assert store.page.read_text() == live


def test_what_is_acknowledged_ends_its_alert_on_the_page_and_for_prometheus(store: Store) -> None:
    store.nights("quickstart")
    prom = store.folder / "night.prom"
    status, _ = store.said("--replay", LAST, "--prometheus", str(prom))
    assert (status, regressed(prom)) == (4, 1)
    assert "Has got worse, since" in store.page.read_text()
    status, out, err = store.called("--ack", "ps", "--reason", "a slower lock", "--prometheus", str(prom))
    assert (status, err) == (0, [])
    assert out[0] == f"known from now on: what has changed of ps up to {LAST}: a slower lock"
    assert out[1] == f"{LAST}: 1 ok, 1 known"
    assert out[-1] == f"report: {store.page}"
    assert regressed(prom) == 0
    text = store.page.read_text()
    assert "Has got worse, since" not in text
    assert "a slower lock" in text
    _, said = store.said("--ack", "ps", "--reason", "again")
    assert {"case": "ps", "until": LAST, "reason": "again"}.items() <= said.items()
    assert said["report"] == str(store.page)


def test_where_nothing_has_changed_there_is_nothing_to_acknowledge(store: Store) -> None:
    store.nights("quickstart")
    status, out, (line,) = store.called("--ack", "all-reduce", "--reason", "x")
    assert (status, out) == (2, [])
    assert line == (
        "stratbench: ack: must be a case that has changed, got 'all-reduce': nothing to acknowledge; changed "
        "are w ps"
    )
    with writing(store.path) as history:
        assert not history.known()


def test_a_change_of_a_case_that_is_missed_tonight_can_be_acknowledged(store: Store) -> None:
    store.nights("quickstart")
    with writing(store.path) as history:
        history.add(
            [Figure(subject=subject("all-reduce"), value=1000.0, error=None, n=3)],
            (),
            started_utc=(BEGAN + timedelta(days=N_NIGHTS)).isoformat(),
            experiment="quickstart",
            run="without-ps",
            run_dir="",
        )
    assert store.said("--ack", "ps", "--reason", "x")[0] == 0


def test_each_experiment_of_a_store_has_a_page_and_others_than_the_named_are_told(store: Store) -> None:
    store.nights("quickstart")
    store.called("--replay", LAST)
    live = store.page.read_text()
    file = store.benchmarks(5)
    status, out, err = store.called("--import", str(file))
    page = store.path / "trend-pytest-benchmark.html"
    assert status == 0
    assert out[-1] == f"report: {page}"
    notice = "1 night is of pytest-benchmark, not of quickstart; each experiment is judged by itself"
    assert err == [f"2026-01-05.2: {file}", f"{notice} and has a page of its own: {page}"]
    assert "pytest-benchmark, night 2026-01-05.2</title>" in page.read_text()
    assert store.page.read_text() == live
    _, _, err = store.called("--replay", LAST, experiment="pytest-benchmark")
    assert err[0].startswith("1 night is of quickstart, not of pytest-benchmark")


def test_experiments_whose_names_are_alike_as_files_have_pages_apart(store: Store) -> None:
    reports = set()
    for number, name in enumerate(("first", "a b", "a-b", "a/b")):
        store.nights(name, strategies=("single",), days=40 * number)
        last = (BEGAN + timedelta(days=40 * number + N_NIGHTS - 1)).date().isoformat()
        reports.add(store.said("--replay", last)[1]["report"])
    assert len(reports) == 4
    assert {Path(each).parent for each in reports} == {store.path}


def test_an_experiment_that_is_called_like_a_date_does_not_share_a_page_with_a_night(store: Store) -> None:
    store.nights("quickstart")
    store.nights(SINCE, days=40)
    last = (BEGAN + timedelta(days=40 + N_NIGHTS - 1)).date().isoformat()
    live = store.said("--replay", last, experiment=SINCE)[1]["report"]
    assert store.said("--replay", SINCE)[1]["report"] != live
    assert f"{SINCE}, night {last}</title>" in Path(live).read_text()


def test_a_page_that_is_overtaken_by_a_newer_night_leaves_the_live_one_to_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = store.benchmarks(8)

    def overtaken(*arguments: Any) -> str:
        monkeypatch.setattr(trend_file, "trend_page", trend_page)
        store.called("--import", str(newer), experiment="pytest-benchmark")
        return trend_page(*arguments)

    monkeypatch.setattr(trend_file, "trend_page", overtaken)
    _, out, _ = store.called("--import", str(store.benchmarks(5)), experiment="pytest-benchmark")
    assert "night 2026-01-08</title>" in store.page.read_text()
    assert out[-1] == f"report: {store.path / 'night-2026-01-05.html'}"


def test_an_older_night_that_is_added_later_does_not_undo_what_is_known(store: Store) -> None:
    store.nights("quickstart")
    store.called("--ack", "ps", "--reason", "a slower lock")
    older(store, SLOWER_SINCE - 0.5, 700.0)
    status, out, _ = store.called("--replay", LAST)
    assert (status, out[0]) == (0, f"{LAST}: 1 ok, 1 known")
    assert "known: ps on w" in out[1]
    assert "since 2026-01-19.2," in out[1]


def test_what_is_acknowledged_after_an_older_night_was_added_concerns_the_newest_one(store: Store) -> None:
    store.nights("quickstart")
    older(store, 3.5, 100.0)
    _, out, _ = store.called("--ack", "ps", "--reason", "a slower lock")
    assert out[0] == f"known from now on: what has changed of ps up to {LAST}: a slower lock"
    assert out[1] == f"{LAST}: 1 ok, 1 known"


def test_what_is_known_is_so_to_a_replay_of_an_earlier_night(store: Store) -> None:
    store.nights("quickstart")
    assert store.called("--replay", "2026-01-22")[0] == 4
    store.called("--ack", "ps", "--reason", "a slower lock")
    status, out, _ = store.called("--replay", "2026-01-22")
    assert (status, out[0]) == (0, "2026-01-22: 1 ok, 1 known")


def test_what_is_acknowledged_of_several_experiments_is_on_the_pages_of_all(store: Store) -> None:
    store.nights("quickstart")
    store.nights("rivals")
    _, said = store.said("--ack", "ps", "--reason", "a slower lock", experiment="rivals")
    pages = [store.page, store.path / "trend-rivals.html"]
    assert said["report"] == str(pages[1])
    assert all("a slower lock" in page.read_text() for page in pages)


def test_an_import_of_several_experiments_tells_of_each_and_ends_with_4_if_any_regressed(
    store: Store,
) -> None:
    files = [store.benchmarks(k + 1, median=0.1 if k < SLOWER_SINCE else 0.15) for k in range(N_NIGHTS)]
    run = write_run(store.folder / "run", [Case(workload="w", strategy="ps")], experiment_name="quickstart")
    paths = [part for path in (*files, run) for part in ("--import", str(path))]
    status, out, _ = store.called(*paths)
    assert status == 4
    assert out[0].startswith("pytest-benchmark: 2026-01-19: 1 regressed")
    assert out[-1] == f"report: {store.path / 'trend-quickstart.html'}"
    status, said = store.said(*paths)
    (other,) = said["others"]
    assert (status, other["experiment"], other["series"]["regressed"]) == (4, "pytest-benchmark", 1)
    assert other["report"] == str(store.page)
    assert store.said("--import", str(run))[0] == 0


def test_each_test_file_is_judged_by_the_newest_night_that_has_it(store: Store) -> None:
    slower = [store.benchmarks(k + 1, median=0.1 if k < SLOWER_SINCE else 0.15) for k in range(N_NIGHTS)]
    unchanged = [store.benchmarks(k + 1, test_file="b.py", hour=4) for k in range(N_NIGHTS)]
    paths = [part for path in (*slower, *unchanged) for part in ("--import", str(path))]
    prometheus = store.folder / "night.prom"
    status, said = store.said(*paths, "--prometheus", str(prometheus), experiment="pytest-benchmark")
    assert (status, said["night"]) == (4, "2026-01-19.2")
    assert said["series"]["regressed"] == said["series"]["ok"] == 1
    assert said["series"]["missed"] == 0
    assert [each["case"] for each in said["regressions"]] == ["a.py::test_b"]
    assert regressed(prometheus) == 1


def test_an_answer_in_words_writes_nothing(store: Store) -> None:
    store.nights("quickstart")
    with reading(store.path) as history:
        verdict = verdict_of(history, history.nights()[-1])
    before = sorted(store.path.iterdir())
    answer = night_answer(store.path, PublishedNight(verdict=verdict, report=None), otherwise=0)
    assert answer.exit_status == 4
    assert sorted(store.path.iterdir()) == before


def test_a_run_whose_commit_is_no_hash_becomes_a_night_without_one(store: Store) -> None:
    case = Case(workload="w", strategy="ps", git_sha="--output=/home/u/")
    run = write_run(store.folder / "run", [case], experiment_name="quickstart")
    status, _, err = store.called("--import", str(run))
    assert status == 0
    assert err[0] == (
        f"{run} must name its commit by 40 or 64 hex digits, got '--output=/home/u/'; the night has no commit"
    )
    with reading(store.path) as history:
        assert [night.git_sha for night in history.nights()] == [None]


def test_a_file_for_prometheus_is_of_the_named_experiment_alone(store: Store) -> None:
    store.nights("rivals")
    prom = store.folder / "quickstart.prom"
    prom.write_text("what quickstart said\n")
    calls = [
        ["--replay", LAST],
        ["--ack", "ps", "--reason", "x"],
        ["--import", str(store.benchmarks(5))],
    ]
    for arguments in calls:
        _, _, err = store.called(*arguments, "--prometheus", str(prom))
        assert sum(f"{prom} must have a night of quickstart, got one of" in line for line in err) == 1
        assert prom.read_text() == "what quickstart said\n"
        store.called(*arguments, "--prometheus", str(prom.with_name("own.prom")), experiment="rivals")
    assert 'experiment="rivals"' in prom.with_name("own.prom").read_text()


def test_a_store_that_is_not_there_is_not_made_by_what_cannot_be_done(store: Store) -> None:
    for arguments in (
        ["--ack", "ps", "--reason", "x"],
        ["--import", str(store.folder / "gone")],
        ["--import", str(store.benchmarks(5)), "--import", str(store.folder / "gone")],
    ):
        status, out, err = store.called(*arguments)
        assert (status, out, len(err)) == (2, [], 1)
        assert not store.path.exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda _: "{}", "odd.json must be a file of pytest-benchmark"),
        (lambda text: text.replace("2026-01", "2999-01"), "a night must have begun by now, got 2999-01-06"),
    ],
)
def test_an_import_of_which_one_is_refused_adds_none(
    store: Store, change: Callable[[str], str], told: str
) -> None:
    store.nights("quickstart")
    odd = store.folder / "odd.json"
    odd.write_text(change(store.benchmarks(6).read_text()))
    status, _, (line,) = store.called("--import", str(store.benchmarks(5)), "--import", str(odd))
    assert (status, told in line) == (2, True)
    with writing(store.path) as history:
        assert {night.experiment for night in history.nights()} == {"quickstart"}


def test_an_experiment_is_named_by_what_its_file_says(store: Store) -> None:
    store.nights("quickstart")
    file = store.folder / "other.yaml"
    file.write_text("name: quickstart\nworkloads: [digits-cnn]\nstrategies: [single, ps]\n")
    assert store.called("--replay", LAST, experiment=str(file))[2] == []
    status, _, (line,) = store.called("--replay", LAST, experiment=str(store.folder / "gone.yaml"))
    assert status == 2
    assert "must be a file or a shipped experiment" in line


@pytest.mark.parametrize(
    ("asked", "offer"),
    [
        ("2026-01-21", "the newest before it is 2026-01-19; there are nights from 2026-01-05 to 2026-01-27"),
        ("2026-01-05.3", "the newest before it is 2026-01-05.2; there are nights from 2026-01-05"),
        ("2025-12-31", "the first is 2026-01-05; there are nights from 2026-01-05 to 2026-01-27"),
        ("yesterday", "there are nights from 2026-01-05 to 2026-01-27, each named by its date"),
    ],
)
def test_an_unknown_date_is_answered_with_the_newest_night_before_it(
    store: Store, asked: str, offer: str
) -> None:
    days = (5, 5, 12, 19, 27)
    files = [str(store.benchmarks(day, median=0.1 + k / 100)) for k, day in enumerate(days)]
    store.called(*(part for file in files for part in ("--import", file)))
    status, _, (line,) = store.called("--replay", asked, experiment="pytest-benchmark")
    assert status == 2
    assert f"replay: must be a night of the history, got '{asked}'; {offer}" in line


def test_a_bisection_of_an_experiment_without_nights_says_what_the_store_holds(store: Store) -> None:
    store.nights("rivals")
    store.called("--import", str(store.benchmarks(5)))
    status, _, (line,) = store.called("--bisect", "ps")
    assert status == 2
    assert line == (
        f"stratbench: bisect: needs nights of quickstart in {store.path}, got 1 night of pytest-benchmark "
        f"and {N_NIGHTS} nights of rivals; name an experiment that it holds, or add nights by "
        f"`stratbench nightly quickstart --store {store.path}`"
    )


def regressed(page: Path) -> float:
    """What Prometheus reads of whether something has got worse."""
    (value,) = (
        sample.value
        for family in text_string_to_metric_families(page.read_text())
        for sample in family.samples
        if sample.name == "stratbench_nightly_regressed"
    )
    return value


def test_a_file_without_a_benchmark_is_refused(store: Store) -> None:
    empty = store.benchmarks(5)
    empty.write_text(json.dumps({**json.loads(empty.read_text()), "benchmarks": []}))
    status, said = store.said("--import", str(empty))
    assert (status, said["error"]["message"]) == (2, f"{empty} must hold benchmarks, got none; name another")
    status, said = store.said("--import", str(store.benchmarks(6)))
    assert (status, said["series"]["new"]) == (0, 1)
