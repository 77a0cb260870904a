"""Changes between two runs: the basis of each judgement, and the cases that are not judged."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_run import DIED, FORMULA, MARKDOWN, SCRIPT, Case, write_run

from harness.cli import main
from harness.records.comparison import comparison_key
from harness.records.conditions import ModelSize
from reports.changes.changes import ByBaseline, ByRate, Change, Changes, changes_between
from reports.changes.formats import changes_table, headline, to_document, to_markdown, to_text
from reports.load import load
from reports.pages.markdown import markdown_text

USUAL_S = {"single": 0.05, "none": 0.02, "ps": 0.04, "all-reduce": 0.03, "sharded-update": 0.025}


def cases(factors: Mapping[str, float] = {}, *, noise: float = 0.005, **more: Any) -> list[Case]:
    """A usual run, some of whose steps take longer."""
    return [
        Case(workload="w", strategy=name, p50_s=s * factors.get(name, 1.0), noise=noise, traced=False, **more)
        for name, s in USUAL_S.items()
    ]


class Runs:
    """Pairs of run folders: `before` and `after`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def changes(
        self,
        before: Sequence[Case],
        after: Sequence[Case],
        *,
        repeats: int = 5,
        slower: float = 1.0,
        **options: Any,
    ) -> Changes:
        """Changes between runs; the machine of the later run takes `slower` times as long."""
        write_run(self.path / "before", list(before), n_repeats=repeats, seed=1, minutes=(1.0, 1.2))
        later = [replace(case, p50_s=case.p50_s * slower) for case in after]
        write_run(self.path / "after", later, n_repeats=repeats, seed=2, minutes=(1.0, 1.3))
        return changes_between(load(self.path / "before"), load(self.path / "after"), **options)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def verdicts(changes: Changes) -> dict[str, str]:
    return {case.strategy: case.verdict for case in changes.cases}


def of(changes: Changes, strategy: str) -> Change:
    return next(case for case in changes.cases if case.strategy == strategy)


def test_nothing_has_changed_however_slow_the_machine_is(runs: Runs) -> None:
    changes = runs.changes(cases(), cases(), slower=1.4)
    assert verdicts(changes) == dict.fromkeys(USUAL_S, "same") | {"single": "cannot-tell"}
    assert changes.regressed == ()
    assert changes.geometric_mean == pytest.approx(1 / 1.4, rel=0.1)
    assert of(changes, "ps").judged_by == ByBaseline(name="single")
    assert of(changes, "single").judged_by == ByRate()
    figures = {row[0].text: row[4].text for row in changes_table(changes).rows}
    assert (figures["ps"], figures["single"]) == ("ratio to single", "examples/s")
    assert headline(changes) == "5 cases: 4 the same, 1 undecided."


def test_if_no_case_can_be_told_the_headline_is_no_all_clear(runs: Runs) -> None:
    changes = runs.changes(cases(noise=0.1), cases(noise=0.1), repeats=3)
    assert set(verdicts(changes).values()) == {"cannot-tell"}
    intervals = {case.strategy: case.factor.interval for case in changes.cases if case.factor}
    lows = [interval.low for name, interval in intervals.items() if interval and name != "single"]
    assert len(lows) == 4
    assert headline(changes) == "5 cases: 5 undecided."
    verdict = to_text(changes).splitlines()
    assert verdict[0] == headline(changes)
    unseen = re.fullmatch(r"An undecided case may be up to (\d+) % slower\.", verdict[1])
    assert unseen is not None
    assert float(unseen[1]) == pytest.approx(100 * (1 - min(lows)), abs=0.5)
    assert to_markdown(changes).startswith(f"**{markdown_text(headline(changes))}**")


def test_what_may_go_unseen_stands_beside_what_is_the_same(runs: Runs) -> None:
    noisy = [replace(case, noise=0.1) if case.strategy == "ps" else case for case in cases()]
    changes = runs.changes(noisy, noisy)
    assert verdicts(changes)["ps"] == "cannot-tell"
    assert headline(changes) == "5 cases: 3 the same, 2 undecided."
    assert to_text(changes).splitlines()[1].startswith("An undecided case may be up to ")


def test_the_answer_stands_before_the_table(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    changes = runs.changes(cases(), cases())
    main(["compare", str(runs.path / "before"), str(runs.path / "after")])
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith(headline(changes))
    assert text.index(headline(changes)) < text.index("changes up to 3 %") < text.index("now ÷ before")


def test_a_case_that_is_slower_is_found_on_a_machine_that_is_faster(runs: Runs) -> None:
    changes = runs.changes(cases(), cases({"ps": 1.1}), slower=0.8)
    assert [change.strategy for change in changes.regressed] == ["ps"]
    change = of(changes, "ps")
    assert change.factor is not None
    assert change.factor.interval is not None
    assert change.factor.interval.contains(1 / 1.1)
    assert change.rate_factor is not None
    assert change.rate_factor.value > 1
    assert headline(changes).startswith("5 cases: 1 slower (ps 0.9")


def test_what_all_strategies_lose_is_found_and_the_baseline_told_with_it(runs: Runs) -> None:
    """A slower collective or transport must not pass for a faster baseline."""
    lost = dict.fromkeys(USUAL_S, 1.2) | {"single": 1.0}
    changes = runs.changes(cases(), cases(lost), slower=1.3)
    assert verdicts(changes) == dict.fromkeys(USUAL_S, "slower") | {"single": "cannot-tell"}
    assert "4 of 4 ratios to it changed alike, about 0.8" in of(changes, "single").why


def test_a_baseline_that_has_moved_is_left_open_and_told(runs: Runs) -> None:
    changes = runs.changes(cases(), cases({"single": 1.2}), slower=1.3)
    assert verdicts(changes) == dict.fromkeys(USUAL_S, "faster") | {"single": "cannot-tell"}
    assert "either they changed or the baseline did" in of(changes, "single").why


def test_of_two_cases_nobody_knows_whether_the_baseline_has_moved(runs: Runs) -> None:
    two = [case for case in cases() if case.strategy in ("single", "ps")]
    slower = [case for case in cases({"ps": 1.2}) if case.strategy in ("single", "ps")]
    changes = runs.changes(two, slower, slower=1.3)
    assert verdicts(changes) == {"single": "cannot-tell", "ps": "slower"}
    assert "a slower machine would look the same" in of(changes, "single").why


def test_rates_alone_are_judged_where_that_is_asked_for(runs: Runs) -> None:
    changes = runs.changes(cases(), cases(), slower=1.5, by_rates=True)
    assert set(verdicts(changes).values()) == {"slower"}
    assert {case.judged_by for case in changes.cases} == {ByRate()}


def test_too_few_repeats_have_no_interval(runs: Runs) -> None:
    changes = runs.changes(cases(), cases({"ps": 2.0}), repeats=2)
    assert of(changes, "ps").verdict == "cannot-tell"
    assert "both runs need 3 repeats" in of(changes, "ps").why


def test_a_change_about_as_large_as_the_threshold_is_left_open(runs: Runs) -> None:
    changes = runs.changes(cases(noise=0.03), cases({"ps": 1.04}, noise=0.03))
    assert of(changes, "ps").verdict == "cannot-tell"
    assert "more repeats" in of(changes, "ps").why


def test_a_small_change_is_one_under_a_small_threshold(runs: Runs) -> None:
    changes = runs.changes(cases(noise=0.001), cases({"ps": 1.02}, noise=0.001))
    assert of(changes, "ps").verdict == "same"
    again = changes_between(load(runs.path / "before"), load(runs.path / "after"), threshold=0.005)
    assert of(again, "ps").verdict == "slower"


def test_a_case_without_a_result_is_broken(runs: Runs) -> None:
    failing = [replace(case, problems=dict.fromkeys(range(5), ("failed", DIED))) for case in cases()]
    after = [failing[i] if case.strategy == "ps" else case for i, case in enumerate(cases())]
    changes = runs.changes(cases(), after)
    change = of(changes, "ps")
    assert (change.verdict, change.broken) == ("not-comparable", True)
    assert "worker-died" in change.why
    assert "5 cases: 1 broken (ps)" in headline(changes)
    back = changes_between(load(runs.path / "after"), load(runs.path / "before"))
    assert of(back, "ps").broken is False
    assert "no result: worker-died" in of(back, "ps").why


def test_a_case_that_computes_something_else_is_broken(runs: Runs) -> None:
    wrong = [replace(case, equivalent=False) if case.strategy == "ps" else case for case in cases()]
    changes = runs.changes(cases(), wrong)
    assert of(changes, "ps").broken
    assert "correctness changed: " in of(changes, "ps").why
    assert [change.strategy for change in changes.regressed] == ["ps"]


def test_a_batch_size_equal_to_the_default_is_no_difference(runs: Runs) -> None:
    changes = runs.changes(cases(), [replace(case, workload_params={"batch_size": 64}) for case in cases()])
    assert not changes.is_empty
    assert of(changes, "ps").verdict != "not-comparable"


def test_other_circumstances_are_named_and_judged_only_if_asked(runs: Runs) -> None:
    other = [replace(case, batch_size=128) for case in cases()]
    changes = runs.changes(cases(), other)
    assert changes.is_empty
    assert of(changes, "ps").why == "batch_size: 64, now 128"
    assert changes.geometric_mean is None
    anyway = changes_between(load(runs.path / "before"), load(runs.path / "after"), anyway=True)
    assert "compared although batch_size: 64, now 128" in of(anyway, "ps").why
    assert of(anyway, "ps").verdict != "not-comparable"


def test_a_later_run_with_nothing_in_it_is_no_good_news(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = runs.changes(cases(), [])
    assert headline(changes) == "5 cases: 5 not comparable. Nothing can be compared."
    assert main(["compare", str(runs.path / "before"), str(runs.path / "after")]) == 1
    capsys.readouterr()


def test_cases_of_one_run_alone_are_said(runs: Runs) -> None:
    changes = runs.changes(cases()[:4], [*cases()[:3], cases()[4]])
    assert of(changes, "sharded-update").why == "only in the later run"
    assert of(changes, "all-reduce").why == "only in the earlier run"


def test_what_is_sent_and_what_is_proven_is_noted(runs: Runs) -> None:
    more = [
        replace(case, payload=2e6, equivalent=None) if case.strategy == "ps" else case for case in cases()
    ]
    notes = of(runs.changes(cases(), more), "ps").notes
    assert "payload per step: 1.00 MB before, now 2.00 MB, 2.00×" in notes
    assert "mark: equivalent before, now not checked" in notes


KNOWN = {
    "model": ModelSize(n_variables=4, variable_bytes=1_000_000, flops_per_example=2e6),
    "file_hash": "a" * 64,
}


def test_a_changed_workload_has_no_part_in_the_mean_of_all_rates(runs: Runs) -> None:
    other = [replace(case, workload="v") for case in cases()]
    slower = cases(dict.fromkeys(USUAL_S, 3.0), **{**KNOWN, "file_hash": "b" * 64})
    changes = runs.changes([*cases(**KNOWN), *other], [*slower, *other])
    assert changes.geometric_mean == pytest.approx(1.0, rel=0.1)
    assert "of unchanged workloads: " in to_markdown(changes)


@pytest.mark.parametrize(
    ("changed", "output"),
    [
        ({"file_hash": "b" * 64}, "its file"),
        (
            {"model": replace(KNOWN["model"], variable_bytes=4_000_000)},
            "its variables or FLOPs",
        ),
        ({"model": replace(KNOWN["model"], n_variables=6)}, "its variables or FLOPs"),
        ({"model": replace(KNOWN["model"], flops_per_example=None)}, "its variables or FLOPs"),
    ],
)
def test_another_model_is_named_and_judged_by_rates(
    changed: Mapping[str, Any], output: str, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its baseline got slower than all others, whose ratios to it have improved."""
    slower = dict.fromkeys(USUAL_S, 2.0) | {"single": 3.0}
    changes = runs.changes(cases(**KNOWN), cases(slower, **{**KNOWN, **changed}))
    assert verdicts(changes) == dict.fromkeys(USUAL_S, "slower")
    assert {case.judged_by for case in changes.cases} == {ByRate()}
    assert headline(changes).startswith("5 cases: 5 slower (single 0.3")
    line = f"w has changed ({output}): its cases are compared by examples/s."
    assert line in " ".join(to_text(changes).split())
    before, after = str(runs.path / "before"), str(runs.path / "after")
    assert main(["compare", before, after]) == 4
    assert changes.geometric_mean is None
    assert line in " ".join(capsys.readouterr().out.split())
    assert main(["compare", before, after, "--json"]) == 4
    (workload,) = json.loads(capsys.readouterr().out)["workloads"]
    assert workload == {"workload": "w", "differs": [output], "unknown": []}
    assert main(["compare", before, after, "--format", "md"]) == 4
    assert markdown_text(line) in capsys.readouterr().out.splitlines()[2]
    # A search for a commit asks for ratios.
    ratios = changes_between(load(runs.path / "before"), load(runs.path / "after"), by_rates=False)
    assert verdicts(ratios) == dict.fromkeys(USUAL_S, "faster") | {"single": "cannot-tell"}


def test_the_same_model_is_judged_by_ratios(runs: Runs) -> None:
    changes = runs.changes(cases(**KNOWN), cases(**KNOWN), slower=1.4)
    assert verdicts(changes) == dict.fromkeys(USUAL_S, "same") | {"single": "cannot-tell"}
    assert changes.workloads == ()


def test_another_payload_alone_is_not_another_workload(runs: Runs) -> None:
    usual = cases(**KNOWN)
    changes = runs.changes(usual, [replace(row, payload=4e6) for row in usual])
    assert changes.workloads == ()
    assert {case.strategy for case in changes.cases if case.more_bytes} == {*USUAL_S}


def test_a_case_that_is_timed_by_another_unit_is_not_compared(runs: Runs) -> None:
    later = [replace(case, timed_unit="window" if case.strategy == "ps" else "step") for case in cases()]
    change = of(runs.changes(cases(), later), "ps")
    assert change.verdict == "not-comparable"
    assert change.why == "timed by step, now by window; repeat the run of the older version"


def test_an_older_record_is_compared_and_what_it_lacks_is_said(runs: Runs) -> None:
    changes = runs.changes(cases(), cases(**KNOWN), slower=1.4)
    assert verdicts(changes) == dict.fromkeys(USUAL_S, "same") | {"single": "cannot-tell"}
    (workload,) = changes.workloads
    assert (workload.differs, workload.unknown) == ((), ("its file", "its variables or FLOPs"))
    assert "w may have changed: " in to_markdown(changes)


def test_more_bytes_are_a_regression_however_fast_the_case_is(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [replace(case, payload=2e6) if case.strategy == "ps" else case for case in cases({"ps": 0.8})]
    changes = runs.changes(cases(), more)
    assert verdicts(changes)["ps"] == "faster"
    assert of(changes, "ps").judged_by == ByBaseline(name="single")
    assert [change.strategy for change in changes.regressed] == ["ps"]
    assert headline(changes).startswith("5 cases: 1 sending more (ps payload 2.00× and TCP 2.00×), 1 faster")
    before, after = str(runs.path / "before"), str(runs.path / "after")
    assert main(["compare", before, after, "--json"]) == 4
    document = json.loads(capsys.readouterr().out)
    assert {case["strategy"]: case["more_bytes"] for case in document["cases"] if case["more_bytes"]} == {
        "ps": ["payload 2.00×", "TCP 2.00×"]
    }
    assert of(changes_between(load(runs.path / "after"), load(runs.path / "before")), "ps").more_bytes == ()


@pytest.mark.parametrize(
    ("payload", "overhead", "sends_more"), [(1.009e6, 1.04, []), (1.011e6, 1.0, ["payload 1.01×"])]
)
def test_bytes_that_hardly_differ_are_the_same(
    payload: float, overhead: float, sends_more: Sequence[str], runs: Runs
) -> None:
    other = [
        replace(case, payload=payload, overhead=overhead) if case.strategy == "ps" else case
        for case in cases()
    ]
    assert list(of(runs.changes(cases(), other), "ps").more_bytes) == sends_more


def test_names_are_shown_as_they_are_and_run_nothing(runs: Runs) -> None:
    nasty = [Case(workload=SCRIPT, strategy=name, p50_s=0.01) for name in ("single", FORMULA, MARKDOWN)]
    changes = runs.changes(nasty, nasty)
    text = to_markdown(changes).replace("<!-- -->", "")
    assert not re.search(r"(?<!\\)[<`]|(?<!\\)\]\(", text)
    assert json.loads(json.dumps(to_document(changes)))["cases"][0]["workload"] == SCRIPT
    assert all(line.isprintable() for line in to_text(changes).splitlines())


def test_the_command_ends_with_4_on_a_regression_and_says_so(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.changes(cases(), cases({"ps": 1.3}))
    before, after = str(runs.path / "before"), str(runs.path / "after")
    assert main(["compare", before, after]) == 4
    text = capsys.readouterr().out
    assert "5 cases: 1 slower (ps 0.7" in text
    assert main(["compare", before, after, "--json"]) == 4
    document = json.loads(capsys.readouterr().out)
    assert {case["verdict"] for case in document["cases"]} == {"same", "slower", "cannot-tell"}
    assert main(["compare", after, before]) == 0
    assert main(["compare", before, after, "--threshold", "40%"]) == 0
    capsys.readouterr()
    assert main(["compare", before, after, "--format", "md"]) == 4
    assert capsys.readouterr().out.startswith("**5 cases: 1 slower (ps")


@pytest.mark.parametrize("value", ["3", "-3%", "60%", "", "three", "nan", "1e9%"])
def test_a_threshold_must_be_a_share(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a", "b", f"--threshold={value}"]) == 2
    assert "threshold: must be a share such as 3%, 50% at most" in capsys.readouterr().err


def test_text_fits_into_100_columns_and_names_an_edited_file(runs: Runs) -> None:
    before, after = cases(**KNOWN), cases({"ps": 1.3}, **{**KNOWN, "file_hash": "b" * 64})
    text = to_text(runs.changes(before, after))
    assert max(map(len, text.splitlines())) <= 100
    assert "w was edited" in text
    assert not re.search("[0-9a-f]{32}", text)


def test_facts_of_a_record_are_those_of_its_key(runs: Runs) -> None:
    runs.changes(cases(), cases())
    record = load(runs.path / "before").records[0]
    assert comparison_key(record) == comparison_key(replace(record, repeat=9, started_utc="2020-01-01"))
    assert comparison_key(record) != comparison_key(replace(record, workers=record.workers + 1))


def test_of_a_run_made_again_hardly_a_case_has_changed(tmp_path: Path) -> None:
    """Noise of 3 % within repeats, minutes and days that are up to half as slow again."""
    n_wrong = 0
    rng = np.random.default_rng(0)
    for trial in range(10):
        changes = Runs(tmp_path / str(trial)).changes(
            cases(noise=0.03), cases(noise=0.03), slower=float(rng.uniform(1, 1.5)), repeats=4
        )
        n_wrong += len(changes.regressed)
    assert n_wrong <= 1
