"""A tuner with made-up repeats: what it has measured, what it decides, and what its plan's file says."""

import json
from pathlib import Path
from typing import Any

import pytest
from made_repeats import experiment, made

from harness.errors import CaseError, UsageError
from harness.records.outcome import Equivalence, Failure
from harness.tuning.successive_halving import MOST_CONFIRMING
from harness.tuning.tuned import Outcome, figures
from harness.tuning.tuner import require_measured, tuner_of
from strategies.users_plans import read_plan

KIB_256, MIB = "bucket_bytes=262144", "bucket_bytes=1048576"
ALL = "all-reduce:transport=ring"


def named(knobs: str) -> str:
    return f"all-reduce:{knobs},transport=ring"


def test_the_default_is_measured_first_and_beside_every_candidate() -> None:
    repeats = made()
    assert [(slot.case, slot.repeat) for slot in repeats.tuner.asked] == [(repeats.tuner.default, 0)]
    repeats.run(repeats.tuner.asked)
    first = repeats.rung(left_s=100)
    assert {str(slot.case.strategy) for slot in first} == {
        ALL,
        named("chunk_size=1"),
        named(KIB_256),
        named(MIB),
        named("bucket_bytes=4194304"),
    }, "one of each plan, what is refused left out"
    assert {(slot.repeat, slot.block) for slot in first} == {(1, 1)}
    assert [slot.order for slot in first] == [1, 2, 3, 4, 5]
    second = repeats.rung(left_s=100)
    assert len(second) == 3
    assert {slot.repeat for slot in second} == {2}


def test_a_faster_candidate_is_chosen_by_repeats_of_its_own() -> None:
    repeats = made(rates={MIB: 1.2, KIB_256: 0.5})
    tuned = repeats.to_the_end(seconds=100)
    assert str(tuned.case.strategy) == named(MIB)
    best = tuned.tried[0]
    assert (best.outcome, best.n_repeats) == (Outcome.CHOSEN, MOST_CONFIRMING)
    assert best.ratio == pytest.approx(1.2, rel=1e-3)
    assert best.interval is not None
    assert best.interval[0] < best.ratio < best.interval[1]
    assert tuned.verdict == f"{named(MIB)} is faster than {ALL}: {figures(best)}"
    assert tuned.plan.strategy_params["bucket_bytes"] == 1 << 20


def test_where_none_is_faster_the_default_stays_and_it_says_so() -> None:
    slower = made(rates=dict.fromkeys(("chunk_size=1", KIB_256, MIB, "bucket_bytes=4194304"), 0.9))
    tuned = slower.to_the_end(seconds=100)
    assert tuned.case == slower.tuner.default
    assert tuned.verdict.startswith(
        f"{ALL} stays: no candidate that was tried is faster, the best is all-reduce:"
    )
    alike = made(rates={MIB: 1.0003})
    tuned = alike.to_the_end(seconds=100)
    assert tuned.case == alike.tuner.default
    assert tuned.tried[0].outcome is Outcome.NOT_FASTER
    assert " stays: the best candidate is not faster beyond noise, all-reduce:" in tuned.verdict


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            {"status": "failed", "error": Failure(type="worker-died", message="worker 1 died", stage="run")},
            "worker 1 died",
        ),
        (
            {"equivalence": Equivalence(checked=True, equivalent=False, reason="w is off by 1")},
            "not equivalent: w is off by 1",
        ),
        ({"status": "implausible", "plausibility": "faster than light"}, "faster than light"),
    ],
)
def test_what_fails_loses_and_is_named(fields: dict[str, Any], why: str) -> None:
    repeats = made(rates={MIB: 2.0, KIB_256: 1.2}, failures={MIB: fields})
    tuned = repeats.to_the_end(seconds=100)
    assert str(tuned.case.strategy) == named(KIB_256)
    failed = {str(each.strategy): each.why for each in tuned.tried if each.outcome is Outcome.FAILED}
    assert failed == {named(MIB): why, named("bucket_bytes=67108864"): "mine.py:3: KeyError: 'w'"}


def test_time_that_is_over_too_soon_leaves_the_default() -> None:
    repeats = made(rates={MIB: 1.2})
    repeats.run(repeats.tuner.asked)
    for left_s in (100, 100, 1.9):
        repeats.rung(left_s=left_s)
    tuned = repeats.tuner.tuned(repeats.folder, None)
    assert tuned.case == repeats.tuner.default
    assert tuned.verdict.startswith(
        f"{ALL} stays: no candidate was confirmed to be faster, the best so far is {named(MIB)} at"
    )


def test_an_interrupted_tuning_keeps_what_it_has_found() -> None:
    repeats = made(rates={MIB: 1.2})
    repeats.run(repeats.tuner.asked)
    assert not repeats.tuner.has_plans
    repeats.rung(left_s=100)
    tuned = repeats.tuner.tuned(repeats.folder, Path("x.json"), is_interrupted=True)
    assert tuned.case == repeats.tuner.default
    assert tuned.to_document()["interrupted"] is True
    assert {each.outcome for each in tuned.tried} == {Outcome.DROPPED, Outcome.FAILED}


def test_the_file_is_a_plan_and_says_how_it_was_found(tmp_path: Path) -> None:
    repeats = made(rates={MIB: 1.2}, failures={KIB_256: {"status": "implausible"}})
    repeats.to_the_end(seconds=60)
    tuned = repeats.tuner.tuned(repeats.folder, tmp_path / "tuned.json")
    tuned.write()
    text = (tmp_path / "tuned.json").read_text()
    told = json.loads(text)["tuning"]
    assert told["workload"] == "digits-mlp"
    assert (told["default"], told["strategy"]) == (ALL, named(MIB))
    assert (told["workers"], told["replicas"], told["link"]) == (2, 1, {"rate_mbit": None})
    assert (told["seconds"], told["seed"]) == (100.0, 0)
    ratios = {each["strategy"]: each["ratio"] for each in told["candidates"]}
    assert ratios[named(MIB)] == pytest.approx(1.2, rel=1e-3)
    assert ratios[named(KIB_256)] is None
    edited = read_plan(text, name="plan-tuned", where="plan tuned.json")
    assert edited.nodes == tuned.plan.nodes
    assert edited.params == tuned.plan.strategy_params


def test_a_plan_that_all_knobs_come_to_is_told() -> None:
    repeats = made(spec=experiment("all-reduce:chunk_size=7"))
    tuned = repeats.to_the_end(seconds=100)
    assert tuned.tried == []
    assert tuned.verdict.endswith("stays: all values of its knobs come to the same plan here")
    require_measured(repeats.tuner, repeats.records)


def failed(kind: str) -> dict[str, Any]:
    return {
        "status": "failed",
        "error": Failure(type=kind, message="it fell over", stage="run"),
        "rounds": None,
    }


@pytest.mark.parametrize(
    ("fields", "kind", "told"),
    [
        (failed("worker-died"), CaseError, "it fell over"),
        (failed("user-error"), UsageError, "it fell over"),
        (failed("unsupported"), UsageError, "it fell over"),
        ({"status": "implausible", "plausibility": "faster than light"}, CaseError, "faster than light"),
        (
            {"equivalence": Equivalence(checked=True, equivalent=False, reason="w")},
            CaseError,
            "must be equivalent and plausible before it is tuned, got not equivalent: w; see",
        ),
    ],
)
def test_a_default_that_cannot_be_measured_is_an_error(fields: dict[str, Any], kind: type, told: str) -> None:
    repeats = made(failures={"transport=ring": fields})
    repeats.run(repeats.tuner.asked)
    assert repeats.rung(left_s=100) == ()
    with pytest.raises(kind, match=told):
        require_measured(repeats.tuner, repeats.records)


def test_too_little_time_for_a_candidate_is_told_with_what_a_repeat_takes() -> None:
    repeats = made(seconds=40)
    repeats.run(repeats.tuner.asked)
    assert repeats.rung(left_s=1.9) == ()
    with pytest.raises(UsageError, match="about 1 s each once all is captured, got 40; give it more"):
        require_measured(repeats.tuner, repeats.records)


@pytest.mark.parametrize(
    ("spec", "seconds", "field", "told"),
    [
        (experiment("none"), 100, "strategy", "must have a tunable knob that is free to change, got none"),
        (experiment("tf-multi-worker-mirrored"), 100, "strategy", "must have a tunable knob"),
        (experiment("ps:local_proxy_variable=true"), 100, "strategy", "must have a tunable knob"),
        (experiment("ps"), 8.9, "seconds", "whose windows take 9 s, got 8.9; give it more"),
        (experiment("ps", workers=[2, 3]), 100, "set", "got 2 cases of ps; give no lists"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_starts(
    spec: Any, seconds: float, field: str, told: str
) -> None:
    with pytest.raises(UsageError) as raised:
        tuner_of(spec, seconds=seconds)
    assert raised.value.field == field
    assert told in raised.value.message


def test_the_verdict_tells_of_those_that_there_was_no_time_for() -> None:
    repeats = made(rates=dict.fromkeys(("chunk_size=1", KIB_256, MIB, "bucket_bytes=4194304"), 0.9))
    repeats.run(repeats.tuner.asked)
    assert len(repeats.rung(left_s=5)) == 2
    verdict = repeats.tuner.tuned(repeats.folder, None).verdict
    assert verdict.endswith("there was no time for 3 of 5")
