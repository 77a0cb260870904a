"""Verdicts of a night on series with known changes, and the changes that they are attributed to."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from reports.history.database import date_of
from reports.history.figures import Figure, Lost, NewNight, Subject
from reports.history.store import History, Night, writing
from reports.history.verdict_text import change_text, document_of, further_lines, verdict_line
from reports.history.verdicts import NightVerdict, verdict_of
from reports.quantities import limits

STRATEGIES, WORKLOADS = ("ps", "all-reduce", "sharded-update"), ("w", "v")
BEGAN = datetime(2026, 1, 5, 2, tzinfo=UTC)
Effects = Mapping[tuple[str, str, str], float]
"""Strategy, workload and metric, `*` for all of them → by what the figure is multiplied from a night on."""


class Nights:
    """A history that is made night by night."""

    def __init__(self, history: History) -> None:
        self.history, self.number = history, 0
        self.rng = np.random.default_rng(0)
        self.hours = 24
        self.now: datetime | None = None

    def add(
        self, count: int, effects: Effects | None = None, *, without: str = "", noise: float = 0.01
    ) -> Night:
        """Some nights more, one after the other; returns the last."""
        for _ in range(count):
            night = self.history.add(
                NewNight(
                    figures=[f for f in self._figures(effects or {}) if f.subject.strategy != without],
                    lost=(),
                    started_utc=(self.now or BEGAN + timedelta(hours=self.hours * self.number)).isoformat(),
                    experiment="x",
                    run=f"run-{self.number}",
                    run_dir="",
                    git_sha=f"sha{self.number}",
                )
            )
            self.number += 1
        return night

    def of_one(self, metric: str, lock_hash: str, values: Sequence[float]) -> Night:
        """Nights of one series; returns the last."""
        subject = Subject(
            case="c",
            workload="w",
            shape="s",
            strategy="ps",
            comparison_key="k",
            lock_hash=lock_hash,
            metric=metric,
        )
        for number, value in enumerate(values):
            noisy = value * float(np.exp(self.rng.normal(0, 1e-6)))
            last = self.history.add(
                NewNight(
                    figures=[Figure(subject=subject, value=noisy, error=None, n=3)],
                    lost=(),
                    started_utc=(BEGAN + timedelta(hours=self.hours * number)).isoformat(),
                    experiment="x",
                    run=f"run-{number}",
                    run_dir="",
                )
            )
        return last

    def _figures(self, effects: Effects) -> list[Figure]:
        results = []
        for strategy in STRATEGIES:
            for workload in WORKLOADS:
                for metric in ("rate", "ratio", "payload_bytes"):
                    of = (strategy, workload, metric)
                    factor = np.prod([effect for to, effect in effects.items() if _concerns(to, of)])
                    spread = 0.0 if metric == "payload_bytes" else 0.01
                    subject = Subject(
                        case=f"{workload}-{strategy}",
                        workload=workload,
                        shape="2 workers",
                        strategy=strategy,
                        comparison_key="k",
                        lock_hash="l",
                        metric=metric,
                        against="single" if metric == "ratio" else "",
                    )
                    value = 100.0 * float(factor) * float(np.exp(self.rng.normal(0, spread)))
                    results.append(Figure(subject=subject, value=value, error=None, n=3))
        return results


def _concerns(to: tuple[str, ...], of: tuple[str, ...]) -> bool:
    return all(pattern in ("*", name) for pattern, name in zip(to, of, strict=True))


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    with writing(tmp_path) as history:
        yield Nights(history)


def night_verdict(nights: Nights, night: Night, **options: int) -> NightVerdict:
    return verdict_of(nights.history, night, **options)


def test_of_what_has_not_changed_all_is_well(nights: Nights) -> None:
    verdict = night_verdict(nights, nights.add(30))
    assert verdict.counts["ok"] == 18
    assert not verdict.regressed
    assert verdict_line(verdict) == "2026-02-03: 18 ok"


def test_runs_of_one_day_count_one_after_the_other(nights: Nights) -> None:
    nights.hours = 0
    nights.add(45)
    slower = {("ps", "w", "ratio"): 0.85}
    nights.add(1, slower)
    verdict = night_verdict(nights, nights.add(3, slower))
    (regressed,) = verdict.regressed
    assert regressed.since is not None
    assert regressed.since.name == "2026-01-05.46"


def test_weekdays_are_those_of_dates_although_some_have_two_runs(nights: Nights) -> None:
    for day in range(70):
        usual = {("*", "*", "rate"): 1.06 if day % 7 >= 5 else 1.0}
        for run in range(1 if day % 7 else 2):
            nights.now = BEGAN + timedelta(days=day, hours=run)
            last = nights.add(1, usual)
    rates = [
        verdict for verdict in night_verdict(nights, last).series if verdict.series.subject.metric == "rate"
    ]
    assert {rate.state for rate in rates} == {"ok"}
    assert max(rate.analysis.sigma for rate in rates) < 0.015


def test_the_first_nights_are_new(nights: Nights) -> None:
    assert night_verdict(nights, nights.add(3)).counts["new"] == 18


def test_a_change_is_pending_and_then_a_regression_with_its_night(nights: Nights) -> None:
    nights.add(25)
    slower = {("ps", "w", "ratio"): 0.85, ("ps", "w", "rate"): 0.85}
    first = nights.add(1, slower)
    young = [verdict for verdict in night_verdict(nights, first).series if verdict.state == "pending"]
    assert len(young) == 2
    for item in young:
        assert item.interval is not None
        assert item.interval.contains(0.85)
        assert not item.interval.contains(1.0)
    assert not night_verdict(nights, first).regressed
    verdict = night_verdict(nights, nights.add(3, slower))
    assert {item.series.subject.metric for item in verdict.regressed} == {"rate", "ratio"}
    (cause,) = verdict.causes
    assert cause.label == "ps on w"
    for item in verdict.regressed:
        assert item.since == first
        assert item.factor == pytest.approx(0.85, rel=0.02)
        assert item.interval is not None
        assert item.interval.contains(0.85)
    line = verdict_line(verdict)
    assert "2 regressed" in line
    assert line.count("ps on w") == 1
    assert re.search(
        r"\. ps on w: examples per second 0\.8[45]\d× \(0\.8[345]\d*–0\.8[567]\d*\), "
        r"throughput ratio to single 0\.8[45]\d× \(0\.8[345]\d*–0\.8[567]\d*\) "
        r"since 2026-01-30, first with stratbench sha25$",
        line,
    )
    document = document_of(verdict, lambda change: [f"{change.before.git_sha}..{change.since.git_sha}"])  # type: ignore[union-attr]
    assert document["regressions"][0]["since"] == "2026-01-30"  # type: ignore[index]
    assert document["regressions"][0]["commits"] == ["sha24..sha25"]  # type: ignore[index]
    assert any(line == "  a commit" for line in further_lines(verdict, lambda _: ["a commit"]))


@pytest.mark.parametrize("hours", [0, 24])
@pytest.mark.parametrize("n_before", [3, 4, 5, 6, 8, 14])
@pytest.mark.parametrize("metric", ["seconds", "payload_bytes"])
def test_a_regression_after_few_nights_is_told_and_kept(
    nights: Nights, metric: str, n_before: int, hours: int
) -> None:
    nights.hours = hours
    nights.of_one(metric, "l", [100.0] * n_before + [1600.0] * 12)
    for night in nights.history.nights()[n_before + 2 :]:
        (regressed,) = night_verdict(nights, night).regressed
        assert regressed.since is not None
        assert regressed.since.run == f"run-{n_before}"
        assert regressed.factor == pytest.approx(16, rel=0.01)


def test_a_drift_is_told_once_and_stays_one(nights: Nights) -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, 80)
    nights.of_one("seconds", "l", np.exp(0.005 * np.arange(80) + noise).tolist())
    all_nights = nights.history.nights()
    verdicts = [night_verdict(nights, all_nights[n - 1]) for n in (38, 39, 40, 41, 60, 80)]
    assert [len(verdict.new_drifts) for verdict in verdicts] == [0, 0, 1, 0, 0, 0]
    assert not any(verdict.regressed for verdict in verdicts)
    assert [verdict.counts["drifting"] for verdict in verdicts] == [0, 0, 1, 1, 1, 1]
    assert re.search(
        r"\. .*: median step drifts: \+\d.\d % a week, 1\.2\d× since 2026-01-05$",
        verdict_line(verdicts[2]),
    )
    last = verdicts[-1]
    assert any(re.search(r"drifting: .* 1\.4\d× since", line) for line in further_lines(last, lambda _: ()))
    (drift,) = document_of(last, lambda _: ())["drifts"]  # type: ignore[misc]
    assert (drift["since"], drift["is_new"]) == ("2026-01-05", False)
    nights.history.acknowledge("c", until=all_nights[39], reason="x")
    assert not night_verdict(nights, all_nights[39]).new_drifts


def test_what_gets_better_little_by_little_is_no_alarm(nights: Nights) -> None:
    verdict = night_verdict(nights, nights.of_one("rate", "l", np.exp(0.005 * np.arange(40)).tolist()))
    assert verdict.counts["drifting"] == 1
    assert not verdict.new_drifts


def test_of_few_nights_an_interval_is_wide_and_told(nights: Nights) -> None:
    nights.add(5)
    verdict = night_verdict(nights, nights.add(2, {("ps", "w", "ratio"): 0.85}))
    (pending,) = [item for item in verdict.series if item.state == "pending"]
    assert pending.interval is not None
    assert pending.interval.contains(0.85)
    normal = 2 * 1.96 * pending.analysis.sigma * (1 / 5 + 1 / 2) ** 0.5
    assert np.log(pending.interval.high / pending.interval.low) > 1.3 * normal
    (line,) = [
        further_line
        for further_line in further_lines(verdict, lambda _: ())
        if further_line.startswith("pending")
    ]
    assert f"× ({limits(pending.interval)}) since" in line


@pytest.mark.parametrize(
    ("metric", "lock_hash", "factor", "expected"),
    [
        ("seconds", "l", 1.22, "median step 1.22×"),
        ("seconds", "", 0.8, "median time 0.800×"),
        ("seconds", "l", 200.0, "median step 200×"),
        ("peak_rss_bytes", "l", 1.3, "peak memory 1.30×"),
        ("tcp_bytes", "l", 0.92, "TCP bytes per step 0.920×"),
        ("payload_bytes", "l", 1.5, "payload per step 1.50×"),
    ],
)
def test_a_change_names_its_metric_factor_and_interval(
    nights: Nights, metric: str, lock_hash: str, factor: float, expected: str
) -> None:
    usual = {"seconds": 6.69e-3, "peak_rss_bytes": 6.69e9}.get(metric, 6.69e6)
    verdict = night_verdict(
        nights,
        nights.of_one(metric, lock_hash, [usual] * 15 + [usual * factor] * 3),
    )
    (changed,) = verdict.series
    assert change_text(changed) == f"{expected} ({limits(changed.interval)})"
    assert change_text(changed, is_brief=True) == expected


def test_more_nights_are_waited_for_if_asked(nights: Nights) -> None:
    nights.add(25)
    last = nights.add(4, {("ps", "w", "ratio"): 0.8})
    assert night_verdict(nights, last).regressed
    verdict = night_verdict(nights, last, confirm=8)
    assert not verdict.regressed
    assert verdict.counts["pending"] == 1


@pytest.mark.parametrize(
    ("effects", "cause"),
    [
        (
            {("*", "*", "rate"): 0.8},
            "all cases (the machine or shared code): most rates changed, no ratio did",
        ),
        ({("ps", "*", "rate"): 0.8, ("ps", "*", "ratio"): 0.8}, "strategy ps, on 2 workloads"),
        ({("*", "v", "rate"): 0.8, ("*", "v", "ratio"): 0.8}, "workload v, with 3 strategies"),
    ],
)
def test_what_got_worse_together_has_one_cause(nights: Nights, effects: Effects, cause: str) -> None:
    nights.add(25)
    verdict = night_verdict(nights, nights.add(6, effects))
    assert [cause.label for cause in verdict.causes] == [cause]


def test_what_got_better_is_no_regression_and_fewer_bytes_are_better(nights: Nights) -> None:
    nights.add(25)
    better = {("ps", "w", "ratio"): 1.2, ("ps", "w", "payload_bytes"): 0.5}
    verdict = night_verdict(nights, nights.add(4, better))
    assert verdict.counts["improved"] == 2
    worse = night_verdict(nights, nights.add(30, {("ps", "v", "payload_bytes"): 1.02}))
    assert [
        verdict.series.subject.metric for verdict in worse.regressed if verdict.series.subject.workload == "v"
    ] == ["payload_bytes"]


def test_what_is_known_is_said_with_its_reason_until_the_next_change(nights: Nights) -> None:
    nights.add(25)
    slower = {("ps", "w", "ratio"): 0.85}
    night = nights.add(4, slower)
    for name in ("w-ps", "ps", "w ps"):
        nights.history.acknowledge(name, until=night, reason="a new kernel")
        verdict = night_verdict(nights, nights.add(1, slower))
        assert not verdict.regressed
        assert verdict.counts["known"] == 1
        assert any(line.endswith("a new kernel") for line in further_lines(verdict, lambda _: ()))
    again = night_verdict(nights, nights.add(15, slower))
    assert not again.regressed
    assert night_verdict(nights, nights.add(6, {("ps", "w", "ratio"): 0.7})).regressed


def test_a_later_change_does_not_hide_a_regression_that_it_does_not_make_up_for(nights: Nights) -> None:
    nights.add(25)
    slower = {("ps", "w", "ratio"): 0.8}
    nights.add(8, slower)
    odd = nights.add(1, {("ps", "w", "ratio"): 0.95})
    assert night_verdict(nights, odd).regressed
    nights.add(6, slower)
    partly = nights.add(8, {("ps", "w", "ratio"): 0.87})
    assert night_verdict(nights, partly).regressed
    whole = nights.add(8)
    assert not night_verdict(nights, whole).regressed


@pytest.mark.parametrize(
    ("levels", "since", "factor", "first", "words"),
    [
        ((1.0, 0.7, 0.66), 25, 0.66, 0.7, "0.660×; 0.700× at first"),
        ((1.0, 0.95, 0.665), 33, 0.7, 0.7, "0.700×"),
        ((1.0, 0.7, 0.88), 25, 0.88, 0.7, "0.880×; 0.700× at first"),
        ((1.0, 0.9, 0.72, 0.9), 25, 0.9, 0.9, "0.900×"),
        ((1.0, 0.9, 0.72, 0.846), 25, 0.846, 0.9, "0.846×; 0.900× at first"),
        ((1.0, 0.7, 0.9, 0.86), 25, 0.86, 0.7, "0.860×; 0.700× at first"),
    ],
)
def test_of_several_changes_the_largest_loss_that_is_left_is_told_with_what_became_of_it(
    nights: Nights, levels: tuple[float, ...], since: int, factor: float, first: float, words: str
) -> None:
    values = [100.0] * 25 + [100.0 * level for level in levels[1:] for _ in range(8)]
    (regressed,) = night_verdict(nights, nights.of_one("rate", "l", values)).regressed
    assert regressed.since is not None
    assert regressed.since.run == f"run-{since}"
    assert regressed.factor == pytest.approx(factor, rel=0.005)
    assert regressed.first_factor == pytest.approx(first, rel=0.005)
    assert regressed.interval is not None
    assert regressed.interval.contains(factor)
    assert re.sub(r" \([\d.–]+(.*)\)", r"\1", change_text(regressed)) == f"examples per second {words}"


def test_what_is_known_is_no_part_of_a_later_loss(nights: Nights) -> None:
    values = [100.0] * 25 + [70.0] * 8
    nights.history.acknowledge("c", until=nights.of_one("rate", "l", values), reason="x")
    (regressed,) = night_verdict(nights, nights.of_one("rate", "l", values + [66.5] * 8)).regressed
    assert regressed.factor == pytest.approx(0.95, rel=0.005)
    assert regressed.later == ()


def test_a_loss_that_was_made_up_for_is_none_although_another_one_is_left(nights: Nights) -> None:
    values = [100.0] * 25 + [70.0] * 8 + [100.0] * 8 + [94.0] * 8
    (regressed,) = night_verdict(nights, nights.of_one("rate", "l", values)).regressed
    assert regressed.factor == pytest.approx(0.94, rel=0.005)
    assert change_text(regressed, is_brief=True) == "examples per second 0.940×"


def test_what_is_known_ends_with_the_night_that_it_was_said_of(nights: Nights) -> None:
    nights.hours = 0
    nights.history.acknowledge("ps", until=nights.add(30), reason="x")
    assert night_verdict(nights, nights.add(5, {("ps", "w", "ratio"): 0.8})).regressed


def test_seldom_nights_have_their_regressions_too(nights: Nights) -> None:
    nights.hours = 24 * 12
    nights.add(20)
    assert night_verdict(nights, nights.add(4, {("ps", "w", "ratio"): 0.7})).regressed


def test_after_a_month_it_is_what_is_usual(nights: Nights) -> None:
    nights.add(25)
    slower = {("ps", "w", "ratio"): 0.85}
    assert night_verdict(nights, nights.add(20, slower)).regressed
    assert not night_verdict(nights, nights.add(20, slower)).regressed


def test_a_case_that_is_not_there_is_missed_and_then_forgotten(nights: Nights) -> None:
    nights.add(20)
    assert night_verdict(nights, nights.add(1, without="ps")).counts["missed"] == 6
    assert night_verdict(nights, nights.add(20, without="ps")).counts["missed"] == 0


def test_a_regression_stands_on_nights_without_its_figure(nights: Nights) -> None:
    nights.add(25)
    slower = {("ps", "w", "ratio"): 0.8}
    assert night_verdict(nights, nights.add(4, slower)).regressed
    last = date_of(int(nights.history.series()[0].days[-1]))
    without = night_verdict(nights, nights.add(1, without="ps"))
    (standing,) = without.regressed
    assert (standing.has_figure, without.counts["missed"]) == (False, 5)
    assert any(f"; last measured on {last}" in line for line in further_lines(without, lambda _: ()))
    # Longer than a series is missed for, until the month is over.
    assert night_verdict(nights, nights.add(18, without="ps")).regressed
    assert not night_verdict(nights, nights.add(15, without="ps")).regressed


@pytest.mark.parametrize("is_known", [False, True])
def test_a_regression_without_a_figure_ends_when_it_is_known_or_the_level_is_back(
    nights: Nights, *, is_known: bool
) -> None:
    nights.add(25)
    nights.add(4, {("ps", "w", "ratio"): 0.8})
    night = nights.add(1, without="ps")
    if is_known:
        nights.history.acknowledge("ps", until=night, reason="x")
        known = night_verdict(nights, night)
        assert (known.regressed, known.counts["missed"]) == ((), 6)
    assert not night_verdict(nights, nights.add(10)).regressed


def test_a_night_is_judged_again_as_it_was(nights: Nights) -> None:
    nights.add(25)
    slower = {("ps", "w", "ratio"): 0.85}
    night = nights.add(4, slower)
    before = night_verdict(nights, night)
    nights.add(10)
    again = night_verdict(nights, night)
    assert verdict_line(again) == verdict_line(before)


def test_wrong_cases_are_named_before_all_else(nights: Nights) -> None:
    lost = [
        Lost(case=f"c{k}", workload="w", shape="s", strategy=f"s{k}", status=status, message="m")
        for k, status in enumerate(["failed", "not-equivalent", *["beyond-bound"] * 5])
    ]
    verdict = night_verdict(
        nights,
        nights.history.add(
            NewNight(
                figures=(),
                lost=lost,
                started_utc=BEGAN.isoformat(),
                experiment="x",
                run="r",
                run_dir="",
                git_sha=None,
            )
        ),
    )
    beyond = "; ".join(f"s{k} on w is beyond the compressor's bound" for k in (2, 3, 4))
    assert verdict_line(verdict) == (
        f"2026-01-05: no series, 7 without a figure. s1 on w is not equivalent; {beyond}; 2 more"
    )
    lines = further_lines(verdict, lambda _: ())
    assert lines[0] == "not-equivalent: s1 on w · s: m"
    assert lines[-1] == "no figure: s0 on w · s: m"


def test_names_are_spelt_out_on_a_terminal(nights: Nights) -> None:
    night = nights.history.add(
        NewNight(
            figures=[
                Figure(
                    subject=replace(
                        Subject(
                            case="x",
                            workload="\x1b[2Jw",
                            shape="s",
                            strategy="a\nb",
                            comparison_key="",
                            lock_hash="",
                            metric="rate",
                        )
                    ),
                    value=1.0,
                    error=None,
                    n=1,
                )
            ],
            lost=(),
            started_utc=BEGAN.isoformat(),
            experiment="x",
            run="r",
            run_dir="",
        )
    )
    verdict = night_verdict(nights, night)
    assert all(line.isprintable() for line in (verdict_line(verdict), *further_lines(verdict, lambda _: ())))
