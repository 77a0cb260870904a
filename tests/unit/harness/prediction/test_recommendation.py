"""Recommendations from hand-made profiles, and their verdict from made-up measurements."""

import json
import math
import shlex
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from open_folders import made_record
from planned_steps import BATCH
from test_plan_search import FEW
from test_predictions import PROBE, WORKLOAD

from harness.errors import CaseError, UsageError
from harness.experiment.chosen_strategy import choose
from harness.experiment.model import Computation
from harness.experiment.references import StrategyRef, WorkloadRef, parse_strategy, parse_workload
from harness.prediction.goals import Aim, Goal
from harness.prediction.plan_search import search
from harness.prediction.predictions import Question
from harness.prediction.profiled_workload import Updates
from harness.prediction.recommendation import (
    LEAST_GAIN,
    MOST_PLANS,
    Recommendation,
    builders_of,
    chosen_workload,
    plan_references,
    recommended,
)
from harness.records.outcome import Equivalence, Failure, Rounds, StepSeconds
from harness.records.record import Record
from harness.records.stored_run import StoredRun

REFERENCE = "c-reference"


def run_in(folder: Path, **experiment: object) -> StoredRun:
    return StoredRun(
        path=folder,
        run="profile",
        spec_hash="",
        created_utc="",
        experiment=experiment,  # type: ignore[arg-type]  # JSON
        environment={},
        records=(),
        n_superseded=0,
        torn=False,
        damaged=(),
    )


def aim(
    goal: Goal = Goal.FASTEST,
    n_workers: int = 2,
    link_mbit: float | None = 300.0,
    strategies: str = "",
    **changes: Any,
) -> Aim:
    own = tuple(parse_strategy(text, field="s") for text in strategies.split())
    known = Aim(goal=goal, workers=n_workers, link_mbit=link_mbit, strategies=own, seconds=600.0)
    return replace(known, **changes)


@lru_cache
def _recommendation(own: Aim) -> Recommendation:
    return recommended(own, WORKLOAD, PROBE, run_in(Path("profile")), experiment="quickstart")


def recommendation(folder: Path, *arguments: Any, **changes: Any) -> Recommendation:
    """Recommendation for an aim with these arguments, searched once."""
    known = _recommendation(aim(*arguments, **changes))
    return replace(known, run_dir=folder, path=folder / known.path.name)


def test_the_best_plans_have_different_builders_and_reasons(tmp_path: Path) -> None:
    answer = recommendation(tmp_path)
    best, reference = answer.best, answer.reference
    assert 1 < len(answer.plans) <= MOST_PLANS
    assert answer.chosen == 0
    assert best.predicted.prediction.step_s < reference.prediction.step_s
    assert reference in [plan.predicted for plan in answer.plans]
    others = [plan for plan in answer.plans if plan.predicted is not reference]
    assert len({plan.predicted.prediction.strategy.name for plan in others}) == len(others)
    for plan in answer.plans:
        assert plan.why.startswith(f"limited by {plan.predicted.prediction.limited_by}; ")
    assert f"sends as much as {reference.title}; " in best.why
    assert best.why.endswith("× its examples per second")
    (note,) = answer.notes
    assert "robust-ps, robust-all-reduce, tpu-replicate, tf-mirrored" in note
    assert answer.later == (
        f"stratbench run quickstart --workloads hand-made:batch_size={BATCH},units=3 --workers 2 "
        "--plan profile/recommended.plan.json"
    )


def test_the_command_for_later_measures_the_step_that_was_predicted(tmp_path: Path) -> None:
    workload = replace(
        WORKLOAD,
        batch_rule="per-replica",
        computation=Computation(precision="bfloat16", xla=True, tf32=False),
        params={"text": "a b"},
    )
    run = run_in(tmp_path / "my runs")
    own = aim(strategies="all-reduce:transport=tcp,chunk_size=128")
    later = recommended(own, workload, PROBE, run, experiment="my own.yaml").later
    assert later is not None
    words = shlex.split(later)
    reference = parse_workload(words[words.index("--workloads") + 1], field="workloads")
    assert (words[2], words[-1]) == ("my own.yaml", str(run.path / "recommended.plan.json"))
    assert reference == WorkloadRef(reference="hand-made", params={"text": "a b", "batch_size": BATCH})
    assert [after for word, after in pairwise(words) if word == "--set"] == [
        "measure.batch=per-replica",
        "measure.precision=bfloat16",
        "measure.xla=true",
        "measure.tf32=false",
    ]


def test_fewer_workers_without_a_prediction_are_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(workload: Any, question: Question, *others: Any, **more: Any) -> Any:
        if question.workers == n_refused:
            raise UsageError("cannot be predicted")
        return search(workload, question, *others, **more)

    monkeypatch.setattr("harness.prediction.recommendation.search", refusing)
    own = aim(Goal.CHEAPEST, 4, strategies="all-reduce:transport=tcp,chunk_size=128")
    n_refused = 2
    answer = recommended(own, WORKLOAD, PROBE, run_in(tmp_path), experiment="x")
    assert answer.notes == ("no plan for 2 workers: cannot be predicted",)
    n_refused = 4
    with pytest.raises(UsageError, match="cannot be predicted"):
        recommended(own, WORKLOAD, PROBE, run_in(tmp_path), experiment="x")


def test_a_reference_that_wins_is_not_compared_with_itself(tmp_path: Path) -> None:
    answer = recommendation(tmp_path, strategies="all-reduce:transport=tcp,chunk_size=128")
    answer = answer.measured({0: REFERENCE}, REFERENCE, records(REFERENCE, 0.011), tmp_path)
    assert answer.verdict == (
        "all-reduce:chunk_size=128,transport=tcp: measured 11 ms per step; "
        "no other plan is significantly faster"
    )


def test_a_builder_that_is_best_is_its_own_reference(tmp_path: Path) -> None:
    answer = recommendation(tmp_path, strategies="all-reduce:transport=tcp,chunk_size=128")
    (plan,) = answer.plans
    assert plan.why.endswith("; the fastest builder with its defaults")
    assert answer.verdict == "all-reduce:chunk_size=128,transport=tcp: predicted shortest step"


@pytest.mark.parametrize(
    ("n_workers", "link_mbit", "strategies"),
    [(2, 300.0, ""), (8, 1000.0, " ".join(map(str, FEW)))],
    ids=["2-300.0", "8-1000.0"],
)
def test_network_takes_the_fewest_bytes_within_a_tenth_of_the_fastest(
    tmp_path: Path, n_workers: int, link_mbit: float, strategies: str
) -> None:
    fastest, frugal = (
        recommendation(tmp_path, goal, n_workers, link_mbit, strategies).best.predicted.prediction
        for goal in (Goal.FASTEST, Goal.NETWORK)
    )
    # A plan of more builders must send 1 % less.
    assert frugal.busiest_bytes <= fastest.busiest_bytes * (1 + LEAST_GAIN)
    assert frugal.step_s <= 1.1 * fastest.step_s


def test_cheapest_takes_fewer_workers_that_are_at_least_half_as_fast(tmp_path: Path) -> None:
    fastest = recommendation(tmp_path, Goal.FASTEST, 16, None)
    cheapest = recommendation(tmp_path, Goal.CHEAPEST, 16, None)
    assert cheapest.best.predicted.n_workers < 16
    assert cheapest.question.workers == 16
    prediction = cheapest.best.predicted.prediction
    hours = prediction.worker_hours_per_million_examples
    assert hours < fastest.best.predicted.prediction.worker_hours_per_million_examples
    assert cheapest.best.predicted.seconds_per_example <= 2 * fastest.best.predicted.seconds_per_example


def test_results_are_exact_unless_others_are_allowed(tmp_path: Path) -> None:
    names = set(map(str, builders_of(PROBE, inexact=False)))
    assert {"all-reduce", "ps", "fully-sharded"} < names
    assert names.isdisjoint({"none", "single", "local-sgd", "hierarchical-all-reduce"})
    more = set(map(str, builders_of(PROBE, inexact=True)))
    assert {"local-sgd", "all-reduce:compressor=bf16"} < more
    assert "all-reduce:compressor=topk" not in more, "it was not probed"
    for inexact in (False, True):
        plans = recommendation(tmp_path, link_mbit=20.0, inexact=inexact).plans
        assert {plan.plan.strategy_class == "exact" for plan in plans} != {inexact}
    assert recommendation(tmp_path, link_mbit=20.0, inexact=True).best.plan.strategy_class != "exact"


def test_a_workload_is_named_where_there_are_several() -> None:
    both = (replace(WORKLOAD, name="a"), replace(WORKLOAD, name="b"))
    assert chosen_workload(both, "b:units=3") is both[1]
    assert chosen_workload(both[:1], None) is both[0]
    for title, got in ((None, "2 steps"), ("c", "'c' for 0")):
        with pytest.raises(
            UsageError, match=f"must name one profiled step of a:units=3, b:units=3, got {got}"
        ):
            chosen_workload(both, title)


def test_the_plan_is_written_with_the_recommendation(tmp_path: Path) -> None:
    answer = recommendation(tmp_path)
    answer.write()
    document = json.loads((tmp_path / "recommended.plan.json").read_text())
    assert document["recommendation"] == json.loads(json.dumps(answer.to_document()))
    assert {"workload", "workers", "goal", "plans", "chosen"} <= set(document["recommendation"])
    assert {"plan", "predicted", "measured", "why"} <= set(document["recommendation"]["plans"][0])
    chosen = choose(StrategyRef(name=str(tmp_path / "recommended.plan.json")))
    assert chosen.edited is not None
    assert chosen.edited.nodes == answer.best.plan.nodes


def test_contenders_are_plans_whose_intervals_overlap_the_best_and_the_reference(tmp_path: Path) -> None:
    answer = recommendation(tmp_path)
    best, other = answer.plans[:2]
    prediction = other.predicted.prediction
    far = replace(prediction, low_s=1.0, high_s=2.0)
    apart = replace(other, predicted=replace(other.predicted, prediction=far))
    assert replace(answer, plans=(best, other)).contenders == (0, 1)
    assert replace(answer, plans=(best, apart)).contenders == (0,)
    elsewhere = replace(prediction, question=replace(prediction.question, workers=4))
    fewer = replace(other, predicted=replace(other.predicted, prediction=elsewhere))
    assert replace(answer, plans=(best, fewer)).contenders == (0,)
    reference = replace(answer, plans=(best, apart), reference=apart.predicted)
    assert reference.contenders == (0, 1), "it is measured in any case"


def test_files_of_mixed_contenders_last_unless_something_fails(tmp_path: Path) -> None:
    answer = recommendation(tmp_path)
    assert answer.plans[0].predicted.candidate.is_mixed
    with plan_references(answer) as references:
        assert references[0] == StrategyRef(name=str(tmp_path / "plan-1.json"))
        assert choose(references[0]).strategy.name == "plan-1"
    assert (tmp_path / "plan-1.json").exists()
    with pytest.raises(KeyboardInterrupt), plan_references(answer):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def records(case: str, step_s: float, n_repeats: int = 4, **changes: object) -> list[Record]:
    """Repeats of a case whose steps differ by a thousandth between rounds and repeats."""
    own = []
    for repeat in range(n_repeats):
        rounds = tuple(step_s * math.exp(0.001 * (round_ + repeat % 2)) for round_ in range(4))
        own.append(
            made_record(
                case,
                repeat,
                batch_size=64,
                step_s=StepSeconds(n=4, mean=step_s, p50=step_s, p90=step_s, p99=step_s),
                rounds=Rounds(block=f"b{repeat}", n_steps=5, n_lead=2, n_made=70, step_s=rounds),
                **changes,
            )
        )
    return own


def measured(
    folder: Path, steps: dict[int, float], goal: Goal = Goal.FASTEST, **changes: object
) -> Recommendation:
    """Recommendation after its plans were measured.

    Args:
        steps: index of a plan → duration of its step, relative to the reference's.
        changes: fields of the first plan's records.
    """
    answer = recommendation(folder, goal)
    cases = {n: f"c-{n}" for n in steps}
    own = [
        record for n, step in steps.items() for record in records(f"c-{n}", step, **({} if n else changes))
    ]
    return answer.measured(cases, REFERENCE, [*own, *records(REFERENCE, 1.0)], folder)


def test_measured_steps_choose_among_the_contenders(tmp_path: Path) -> None:
    answer = measured(tmp_path, {0: 0.9, 1: 0.8})
    assert answer.chosen == 1
    assert answer.later is None
    figures = answer.best.measured
    assert figures is not None
    assert (figures.ratio, figures.step_s) == pytest.approx((1.25, 0.8))
    assert figures.n_repeats == 4
    assert answer.verdict == (
        f"{answer.best.title}: measured 1.25× the examples per second of {answer.reference.title} "
        "(1.25 to 1.25, n = 4)"
    )


def test_the_first_prediction_stays_unless_another_is_surely_faster(tmp_path: Path) -> None:
    assert measured(tmp_path, {0: 0.9, 1: 0.9}).chosen == 0
    few = recommendation(tmp_path).measured(
        {0: "c-0", 1: "c-1"},
        REFERENCE,
        [*records("c-0", 0.9, 1), *records("c-1", 0.8, 1), *records(REFERENCE, 1.0, 1)],
        tmp_path,
    )
    assert few.chosen == 0
    assert few.best.measured is not None
    assert few.best.measured.ratio_interval is None


def test_no_difference_from_the_reference_is_stated(tmp_path: Path) -> None:
    assert measured(tmp_path, {0: 1.0}).verdict.endswith("n = 4), which is no significant difference")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"status": "failed", "error": Failure(type="worker-died", message="it died", stage="run")},
            "it died",
        ),
        ({"status": "implausible", "plausibility": "too fast"}, "too fast"),
        (
            {"equivalence": Equivalence(checked=True, equivalent=False, reason="weights differ")},
            "not equivalent: weights differ",
        ),
    ],
)
def test_a_plan_that_fails_is_not_chosen(tmp_path: Path, changes: dict[str, object], problem: str) -> None:
    answer = measured(tmp_path, {0: 0.5, 1: 0.9}, **changes)
    assert (answer.chosen, answer.plans[0].problem) == (1, problem)
    assert answer.plans[0].measured is None
    alone = measured(tmp_path, {0: 0.5}, **changes)
    assert alone.chosen == 1
    assert alone.verdict.endswith("; no plan could be measured")
    first = replace(recommendation(tmp_path), plans=recommendation(tmp_path).plans[:1])
    own = [*records("c-0", 0.5, **changes), *records(REFERENCE, 1.0)]
    with pytest.raises(CaseError, match=f"No plan can be recommended.*: {problem}"):
        first.measured({0: "c-0"}, REFERENCE, own, tmp_path)


def test_plans_are_compared_with_each_other_if_only_the_reference_failed(tmp_path: Path) -> None:
    own = [*records("c-0", 0.5), *records("c-1", 0.4)]
    answer = recommendation(tmp_path).measured({0: "c-0", 1: "c-1"}, REFERENCE, own, tmp_path)
    assert (answer.chosen, answer.best.problem) == (1, None)
    assert answer.best.measured is not None
    assert answer.best.measured.ratio is None
    assert answer.verdict == (
        f"{answer.best.title}: measured 400 ms per step, not in the same rounds as {answer.reference.title}"
    )


def test_named_builders_that_are_no_candidates_have_a_reason(tmp_path: Path) -> None:
    (note,) = recommendation(tmp_path, strategies="all-reduce ps:staleness=2").notes
    assert note.startswith("no candidate: ps:staleness=2: must be one whose steps are simulated, got ps with")


def test_plans_merge_rows_if_the_profile_does(tmp_path: Path) -> None:
    merging = replace(WORKLOAD, updates=Updates(merges_rows=True))
    for own in (aim(strategies="ps"), aim(Goal.CHEAPEST, inexact=False, seconds=1.0)):
        answer = recommended(own, merging, PROBE, run_in(tmp_path), experiment="quickstart")
        builders = [b for p in answer.plans for b in p.predicted.candidate.builders]
        assert all("merge_rows" in str(builder) for builder in builders)
        assert "--set measure.merge_rows=true" in (answer.later or "")


def test_network_takes_the_fewest_bytes_of_what_was_measured_nearly_as_fast(tmp_path: Path) -> None:
    answer = measured(tmp_path, {0: 0.9, 1: 0.85}, Goal.NETWORK)
    assert answer.chosen == 0
    assert measured(tmp_path, {0: 0.9, 1: 0.5}, Goal.NETWORK).chosen == 1
