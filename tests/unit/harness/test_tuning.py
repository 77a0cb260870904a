"""A tuner with made-up repeats: what it has measured, what it decides, and what its plan's file says."""

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from made_repeats import experiment, made_repeats

from harness.errors import CaseError, UsageError
from harness.records.outcome import Equivalence, Failure
from harness.tuning import (
    LEAST_CONFIRMING,
    MOST_CONFIRMING,
    Outcome,
    Rung,
    figures,
    is_faster,
    next_rung,
    require_measured,
    tuner_of,
)
from strategies.user_strategies import read_plan

KIB_256, MIB = "bucket_bytes=262144", "bucket_bytes=1048576"
ALL = "all-reduce:transport=ring"


def named(knobs: str) -> str:
    return f"all-reduce:{knobs},transport=ring"


def test_the_default_is_measured_first_and_beside_every_candidate() -> None:
    repeats = made_repeats()
    assert [(slot.case, slot.repeat) for slot in repeats.tuner.default_slots] == [(repeats.tuner.default, 0)]
    repeats.run(repeats.tuner.default_slots)
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
    repeats = made_repeats(rates={MIB: 1.2, KIB_256: 0.5})
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
    slower = made_repeats(rates=dict.fromkeys(("chunk_size=1", KIB_256, MIB, "bucket_bytes=4194304"), 0.9))
    tuned = slower.to_the_end(seconds=100)
    assert tuned.case == slower.tuner.default
    assert tuned.verdict.startswith(
        f"{ALL} stays: no candidate that was tried is faster, the best is all-reduce:"
    )
    alike = made_repeats(rates={MIB: 1.0003})
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
    repeats = made_repeats(rates={MIB: 2.0, KIB_256: 1.2}, failures={MIB: fields})
    tuned = repeats.to_the_end(seconds=100)
    assert str(tuned.case.strategy) == named(KIB_256)
    failed = {
        str(candidate.strategy): candidate.why
        for candidate in tuned.tried
        if candidate.outcome is Outcome.FAILED
    }
    assert failed == {named(MIB): why, named("bucket_bytes=67108864"): "mine.py:3: KeyError: 'w'"}


def test_time_that_is_over_too_soon_leaves_the_default() -> None:
    repeats = made_repeats(rates={MIB: 1.2})
    repeats.run(repeats.tuner.default_slots)
    for left_s in (100, 100, 1.9):
        repeats.rung(left_s=left_s)
    tuned = repeats.tuner.tuned(repeats.folder, None)
    assert tuned.case == repeats.tuner.default
    assert tuned.verdict.startswith(
        f"{ALL} stays: no candidate was confirmed to be faster, the best so far is {named(MIB)} at"
    )


def test_an_interrupted_tuning_keeps_what_it_has_found() -> None:
    repeats = made_repeats(rates={MIB: 1.2})
    repeats.run(repeats.tuner.default_slots)
    assert not repeats.tuner.has_plans
    repeats.rung(left_s=100)
    tuned = repeats.tuner.tuned(repeats.folder, Path("x.json"), is_interrupted=True)
    assert tuned.case == repeats.tuner.default
    assert tuned.to_document()["interrupted"] is True
    assert {candidate.outcome for candidate in tuned.tried} == {Outcome.DROPPED, Outcome.FAILED}


def test_the_file_is_a_plan_and_says_how_it_was_found(tmp_path: Path) -> None:
    repeats = made_repeats(rates={MIB: 1.2}, failures={KIB_256: {"status": "implausible"}})
    repeats.to_the_end(seconds=60)
    tuned = repeats.tuner.tuned(repeats.folder, tmp_path / "tuned.json")
    tuned.write()
    text = (tmp_path / "tuned.json").read_text()
    tuning = json.loads(text)["tuning"]
    assert tuning["workload"] == "digits-mlp"
    assert (tuning["default"], tuning["strategy"]) == (ALL, named(MIB))
    assert (tuning["workers"], tuning["replicas"], tuning["link"]) == (2, 1, {"rate_mbit": None})
    assert (tuning["seconds"], tuning["seed"]) == (100.0, 0)
    ratios = {candidate["strategy"]: candidate["ratio"] for candidate in tuning["candidates"]}
    assert ratios[named(MIB)] == pytest.approx(1.2, rel=1e-3)
    assert ratios[named(KIB_256)] is None
    edited = read_plan(text, name="plan-tuned", where="plan tuned.json")
    assert edited.nodes == tuned.plan.nodes
    assert edited.params == tuned.plan.strategy_params


def test_a_plan_that_all_knobs_come_to_is_told() -> None:
    repeats = made_repeats(spec=experiment("all-reduce:chunk_size=7"))
    tuned = repeats.to_the_end(seconds=100)
    assert tuned.tried == []
    assert tuned.verdict.endswith("stays: all values of its knobs give the same plan here")
    require_measured(repeats.tuner, repeats.records)


def failed(kind: str) -> dict[str, Any]:
    return {
        "status": "failed",
        "error": Failure(type=kind, message="it fell over", stage="run"),
        "rounds": None,
    }


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
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
def test_a_default_that_cannot_be_measured_is_an_error(
    fields: dict[str, Any], kind: type, message: str
) -> None:
    repeats = made_repeats(failures={"transport=ring": fields})
    repeats.run(repeats.tuner.default_slots)
    assert repeats.rung(left_s=100) == ()
    with pytest.raises(kind, match=message):
        require_measured(repeats.tuner, repeats.records)


def test_too_little_time_for_a_candidate_is_told_with_what_a_repeat_takes() -> None:
    repeats = made_repeats(seconds=40)
    repeats.run(repeats.tuner.default_slots)
    assert repeats.rung(left_s=1.9) == ()
    with pytest.raises(UsageError, match="about 1 s each once all is captured, got 40; give it more"):
        require_measured(repeats.tuner, repeats.records)


@pytest.mark.parametrize(
    ("spec", "seconds", "field", "message"),
    [
        (experiment("none"), 100, "strategy", "must have a tunable knob that is free to change, got none"),
        (experiment("tf-multi-worker-mirrored"), 100, "strategy", "must have a tunable knob"),
        (experiment("ps:local_proxy_variable=true"), 100, "strategy", "must have a tunable knob"),
        (experiment("ps"), 8.9, "seconds", "whose windows take 9 s, got 8.9; give it more"),
        (experiment("ps", workers=[2, 3]), 100, "set", "got 2 cases of ps; give no lists"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_starts(
    spec: Any, seconds: float, field: str, message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        tuner_of(spec, seconds=seconds)
    assert raised.value.field == field
    assert message in raised.value.message


def test_the_verdict_tells_of_those_that_there_was_no_time_for() -> None:
    repeats = made_repeats(rates=dict.fromkeys(("chunk_size=1", KIB_256, MIB, "bucket_bytes=4194304"), 0.9))
    repeats.run(repeats.tuner.default_slots)
    assert len(repeats.rung(left_s=5)) == 2
    verdict = repeats.tuner.tuned(repeats.folder, None).verdict
    assert verdict.endswith("there was no time for 3 of 5")


NAMES = [f"c{number}" for number in range(11)]
Ratio = Callable[[str], float | None]
"""Candidate → logarithm of its ratio in one repeat; None where it crashes."""


def searched(
    ratio: Ratio, *, n_affordable: int, names: Sequence[str] = NAMES, seed: int = 0
) -> tuple[list[Rung], Sequence[float]]:
    """All rungs, and the ratios that the last one confirms by."""
    results: list[Rung] = []
    logs: dict[str, list[float]] = {name: [] for name in names}
    confirming: list[float] = []
    left = n_affordable
    while rung := next_rung(names, seed=seed, rungs=results, logs=logs, n_affordable=left):
        results.append(rung)
        n_repeats = min(rung.n_repeats, left // 2) if rung.confirms else rung.n_repeats
        left -= n_repeats * (len(rung.names) + 1)
        for name in rung.names:
            ratios = [ratio(name) for _ in range(n_repeats)]
            if None in ratios or name not in logs:
                logs.pop(name, None)
                continue
            logs[name] += [value for value in ratios if value is not None]
            confirming = logs[name][-n_repeats:] if rung.confirms else []
    assert left >= 0, "no more is begun than there is time for"
    return results, confirming


def noisy(true: Mapping[str, float], *, sd: float, seed: int) -> Ratio:
    draw = random.Random(seed)
    return lambda name: draw.gauss(math.log(true.get(name, 1.0)), sd)


def test_the_faster_half_goes_on_and_has_twice_as_many_repeats() -> None:
    rates = {name: 1.0 + place / 10 for place, name in enumerate(NAMES[:8])}
    tuned, _ = searched(lambda name: math.log(rates[name]), n_affordable=100, names=NAMES[:8])
    assert [(len(rung.names), rung.n_repeats, rung.confirms) for rung in tuned] == [
        (8, 1, False),
        (4, 1, False),
        (2, 2, False),
        (1, MOST_CONFIRMING, True),
    ]
    assert tuned[0].names != tuple(NAMES[:8]), "in a drawn order"
    assert set(tuned[1].names) == {"c7", "c6", "c5", "c4"}
    assert tuned[-1].names == ("c7",)


@pytest.mark.parametrize("n_affordable", range(60))
def test_time_decides_how_many_are_tried(n_affordable: int) -> None:
    tuned, confirming = searched(lambda _: 0.1, n_affordable=n_affordable)
    if n_affordable < 2:
        assert tuned == []
        return
    assert len(tuned[0].names) == 1 or len(confirming) >= LEAST_CONFIRMING
    # One repeat that selects, and three that confirm, of a candidate and the default.
    assert is_faster(confirming) == (n_affordable >= 2 * (1 + LEAST_CONFIRMING))


def test_the_best_is_confirmed_where_time_allows_no_other_rung() -> None:
    logs = {name: [place / 10] for place, name in enumerate(NAMES[:8])}
    results = [Rung(names=tuple(NAMES[:8]), n_repeats=1)]
    halved = next_rung(NAMES[:8], seed=0, rungs=results, logs=logs, n_affordable=5)
    assert halved == Rung(names=("c7", "c6", "c5", "c4"), n_repeats=1, number=1)
    assert next_rung(NAMES[:8], seed=0, rungs=results, logs=logs, n_affordable=4) == Rung(
        names=("c7",), n_repeats=MOST_CONFIRMING, number=1, confirms=True
    )


def test_the_runner_up_follows_one_that_fails_while_it_is_confirmed() -> None:
    results = [
        Rung(names=("a", "b", "c", "d"), n_repeats=1),
        Rung(names=("a", "b"), n_repeats=1, number=1),
        Rung(names=("a",), n_repeats=MOST_CONFIRMING, number=2, confirms=True),
    ]
    logs = {"b": [0.2, 0.2], "c": [0.1], "d": [0.1]}
    following = next_rung("abcd", seed=0, rungs=results, logs=logs, n_affordable=20)
    assert following == Rung(names=("b",), n_repeats=MOST_CONFIRMING, number=2, confirms=True)
    assert next_rung("abcd", seed=0, rungs=results, logs={**logs, "a": [0.3]}, n_affordable=20) is None


def test_equal_seeds_and_measurements_choose_alike_and_other_seeds_try_others() -> None:
    tried = [searched(noisy({}, sd=0.1, seed=5), n_affordable=24, seed=seed)[0] for seed in (0, 0, 1)]
    assert tried[0] == tried[1]
    assert set(tried[0][0].names) != set(tried[2][0].names)


def test_a_candidate_that_crashes_is_out_and_the_next_best_wins() -> None:
    def ratio(name: str) -> float | None:
        return None if name == "c3" else math.log(1.2 if name == "c4" else 1.0)

    tuned, confirming = searched(ratio, n_affordable=100)
    assert "c3" in tuned[0].names
    assert all("c3" not in rung.names for rung in tuned[1:])
    assert tuned[-1].names == ("c4",)
    assert is_faster(confirming)


def test_where_all_crash_there_is_no_more() -> None:
    tuned, _ = searched(lambda _: None, n_affordable=100)
    assert len(tuned) == 1


def test_where_none_is_faster_those_follow_that_there_was_no_time_for() -> None:
    names = [f"c{number}" for number in range(24)]
    tuned, confirming = searched(
        lambda name: math.log(1.3 if name == "c0" else 0.9), n_affordable=30, names=names, seed=1
    )
    assert "c0" not in tuned[0].names
    assert "c0" in tuned[1].names
    assert not set(tuned[0].names) & set(tuned[1].names)
    assert [rung.number for rung in tuned] == [0, 0, 1, 2]
    assert (tuned[-1].names, tuned[-1].confirms) == (("c0",), True)
    assert is_faster(confirming)


def test_where_none_is_faster_none_is_confirmed() -> None:
    tuned, _ = searched(lambda _: -0.05, n_affordable=100)
    assert not any(rung.confirms for rung in tuned)


@pytest.mark.parametrize("sd", [0.02, 0.2])
def test_noise_alone_seldom_wins_and_what_is_faster_mostly_does(sd: float) -> None:
    n = 400
    won_by_luck = sum(
        is_faster(searched(noisy({}, sd=sd, seed=seed), n_affordable=50)[1]) for seed in range(n)
    )
    # The lower end of an interval of 95 % lies above the truth in 2.5 % of cases; three deviations more.
    assert won_by_luck <= n * 0.025 + 3 * math.sqrt(n * 0.025)
    better = {"c6": math.exp(4 * sd)}
    won = 0
    for seed in range(n):
        tuned, confirming = searched(noisy(better, sd=sd, seed=seed), n_affordable=50)
        won += tuned[-1].names == ("c6",) and is_faster(confirming)
    assert won > 0.8 * n


def test_the_repeats_that_selected_it_do_not_count_for_the_winner() -> None:
    """With these it would win three times as often as an interval of 95 % allows."""
    n = 400
    by_all = 0
    for seed in range(n):
        seen: dict[str, list[float]] = {}
        draw = noisy({}, sd=0.1, seed=seed)

        def ratio(name: str, seen: dict[str, list[float]] = seen, draw: Ratio = draw) -> float | None:
            value = draw(name)
            assert value is not None
            seen.setdefault(name, []).append(value)
            return value

        tuned, _ = searched(ratio, n_affordable=36)
        by_all += tuned[-1].confirms and is_faster(seen[tuned[-1].names[0]])
    assert by_all > 2 * n * 0.025


@pytest.mark.parametrize(
    ("logs", "faster"),
    [
        ([], False),
        ([0.5, 0.5], False),
        ([0.5, 0.5, 0.5], True),
        ([0.1, 0.11, 0.12], True),
        ([0.1, 0.5, -0.1], False),
        ([-0.1, -0.11, -0.12], False),
    ],
)
def test_faster_is_what_lies_beyond_noise(logs: list[float], faster: bool) -> None:
    assert is_faster(logs) is faster
