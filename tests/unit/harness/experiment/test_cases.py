"""Cases of an experiment, their schedule, the baseline once more, and folders of files that a user names."""

import itertools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.experiment import cases
from harness.experiment.cases import Case, expand, global_batch
from harness.experiment.load import resolve
from harness.experiment.schedule import baseline_of, blocks_of, schedule


def _cases(**changes: Any) -> tuple[Case, ...]:
    document = {"name": "x", "workloads": ["wide-mlp"], "strategies": ["single", "none", "ps", "all-reduce"]}
    return expand(resolve(document | changes))


def _is_control(case: Case) -> bool:
    return case.strategy.name == "none"


def test_single_runs_alone_and_once_whatever_the_sweep() -> None:
    cases = _cases(cluster={"workers": [2, 4], "replicas_per_worker": [1, 2]})
    assert [
        (case.shape.workers, case.shape.replicas_per_worker)
        for case in cases
        if case.strategy.name == "single"
    ] == [(1, 1)]
    assert len(cases) == 1 + 3 * 4


def test_workers_with_gpus_serve_cases_of_as_many_replicas_and_others_all() -> None:
    for device, n_sites in (("gpu", 2), ("cpu", 1)):
        cases = _cases(cluster={"workers": [1, 4], "replicas_per_worker": [1, 4], "device": device})
        slots = schedule(cases, repeats=2, seed=0, interleave=True, is_control=_is_control)
        clusters = [slot.case.shape.cluster for slot in slots]
        in_a_row = [cluster for k, cluster in enumerate(clusters) if k == 0 or cluster != clusters[k - 1]]
        assert len(in_a_row) == n_sites
    one_each = [case for case in cases if case.shape.replicas_per_worker == 1]
    assert {case.shape.workers for case in one_each} == {1, 4}


def test_ids_are_folder_names_and_do_not_depend_on_the_experiment() -> None:
    cases = _cases()
    others = _cases(name="other", strategies=["all-reduce", "ps"], compare={}, measure={"steps": 3})
    assert all(re.fullmatch(r"[a-z0-9-]+-[0-9a-f]{8}", case.id) for case in cases)
    assert {case.id for case in others} < {case.id for case in cases}
    assert cases[2].id.startswith("wide-mlp-ps-2x1-")


def test_ids_tell_cases_apart_that_look_alike() -> None:
    cases = _cases(
        workloads=["wide-mlp", {"name": "wide-mlp", "batch_size": 8}, "a/m.py:f", "b/m.py:f"],
        strategies=["ps", "ps:staleness=1"],
    )
    assert len({case.id for case in cases}) == len(cases) == 4 * 2


def test_links_are_swept_and_are_those_of_workers_that_a_case_has() -> None:
    link = {"rate_mbit": [100, None], "workers": {2: {"rate_mbit": 10}}}
    cases = _cases(
        strategies=["single", "ps"], cluster={"provider": "docker", "workers": [2, 3], "link": link}
    )
    rates = {case.id: tuple(limit and limit.rate_mbit for limit in case.shape.links) for case in cases}
    assert sorted(rates.values(), key=str) == [
        (100, 100),
        (100, 100, 10),
        (None, None),
        (None, None, 10),
        (None,),
    ]
    # What a case has none of makes it no other case.
    plain = _cases(
        strategies=["single", "ps"], cluster={"provider": "docker", "link": {"rate_mbit": [100, None]}}
    )
    assert {case.id for case in plain} == {case_id for case_id, links in rates.items() if 10 not in links}


@pytest.mark.parametrize("link", [{"burst_kb": 32}, {"workers": {1: {"rate_mbit": 100, "burst_kb": 8}}}])
def test_another_burst_makes_another_case(link: dict[str, Any]) -> None:
    def case(**more: Any) -> Case:
        (cases,) = _cases(
            strategies=["ps"], cluster={"provider": "docker", "link": {"rate_mbit": 100} | more}
        )
        return cases

    assert case(**link).id != case().id


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ({"exclude": [{"strategy": "ps"}]}, {"single", "none", "all-reduce"}),
        ({"exclude": [{"strategy": "ps", "workers": 2}]}, {"single", "none", "all-reduce", "ps"}),
        ({"exclude": [{"workers": 2}, {"workers": 3}]}, {"single"}),
        ({"include": [{"strategy": "ps"}, {"strategy": "none"}]}, {"ps", "none"}),
        ({"include": [{"strategy": "ps"}], "exclude": [{"workers": 3}]}, {"ps"}),
    ],
)
def test_filters_keep_and_drop_what_they_match(matrix: dict[str, Any], expected: set[str]) -> None:
    cases = _cases(cluster={"workers": [2, 3]}, matrix=matrix)
    assert {case.strategy.name for case in cases} == expected


@pytest.mark.parametrize(("image", "left"), [("mine", None), (None, "mine")])
def test_a_filter_names_an_image_or_that_there_is_none(image: str | None, left: str | None) -> None:
    cluster = {"provider": "docker", "image": [None, "mine"]}
    cases = _cases(strategies=["ps"], cluster=cluster, matrix={"exclude": [{"image": image}]})
    assert [case.shape.image for case in cases] == [left]


def test_a_filter_matches_by_a_part_of_the_parameters() -> None:
    strategies = ["single", "ps", "ps:staleness=2", "ps:staleness=2,backup=1"]
    cases = _cases(strategies=strategies, matrix={"exclude": [{"strategy": "ps:staleness=2"}]})
    assert [str(case.strategy) for case in cases] == ["single", "ps"]


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ({"exclude": [{"workers": 9}]}, r"matrix\.exclude\[0\]: must match at least one case"),
        (
            {"include": [{"strategy": "ps"}, {"strategy": "pss"}]},
            r"matrix\.include\[1\]: must match at least one",
        ),
        (
            {"include": [{"strategy": "ps"}], "exclude": [{"strategy": "ps"}]},
            "matrix: must leave at least one case",
        ),
    ],
)
def test_filters_that_say_nothing_are_errors(matrix: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        _cases(matrix=matrix)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"cluster": {"workers": list(range(1, 3001)), "cores_per_worker": list(range(1, 3001))}},
            r"matrix: .*4 strategies x 3,000 cluster\.workers x 3,000 cluster\.cores_per_worker = 36,000,000",
        ),
        (
            {
                "workloads": [f"wide-mlp:size={n}" for n in range(101)],
                "strategies": [f"ps:n={n}" for n in range(100)],
                "matrix": {"include": [{"workload": "wide-mlp:size=1"}]},
            },
            "matrix: must combine to at most 10,000 cases, got 101 workloads x 100 strategies = 10,100; ",
        ),
        (
            {"cluster": {"workers": [2, 3]}, "measure": {"repeats": 2_000}},
            r"measure\.repeats: .* at most 10,000 in all, got 2,000 measure\.repeats x 7 cases = 14,000;",
        ),
    ],
)
def test_more_than_a_night_can_run_is_refused_with_its_counts(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        _cases(**changes)


def test_every_swept_field_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    swept = {
        "provider": ["local", "docker"],
        "workers": [1, 2, 3],
        "replicas_per_worker": [1, 2, 3, 4],
        "device": ["cpu", "gpu"],
        "cores_per_worker": [1, 2, 3],
        "memory_per_worker": ["1GiB", "2GiB"],
        "image": [None, "mine"],
    }
    monkeypatch.setattr(cases, "MAX_REPEATS", 2 * 3 * 4 * 2 * 3 * 2 * 2)
    measure = {"repeats": 1}
    assert len(_cases(strategies=["ps"], cluster=swept, measure=measure)) == cases.MAX_REPEATS
    for field, values in swept.items():
        less = {name: [values[0]] for name, values in swept.items() if name != field}
        monkeypatch.setattr(cases, "MAX_REPEATS", len(values) - 1)
        with pytest.raises(UsageError, match=rf"got {len(values)} cluster\.{field} = {len(values)}; "):
            _cases(strategies=["ps"], cluster=less | {field: values}, measure=measure)


def test_as_much_as_a_night_can_run_is_taken() -> None:
    cluster = {"workers": list(range(1, 101)), "cores_per_worker": list(range(1, 101))}
    matrix = {"include": [{"workers": 7}, {"workers": 8, "cores_per_worker": 1}]}
    cases = _cases(strategies=["ps"], cluster=cluster, matrix=matrix, measure={"repeats": 99})
    assert len(cases) == 101


@pytest.mark.parametrize(
    ("batch", "params", "expected"),
    [
        ("global", {}, 64),
        ("global", {"batch_size": 10}, 10),
        ("per-replica", {}, 64 * 6),
        ("per-replica", {"batch_size": 1}, 6),
    ],
)
def test_the_batch_follows_its_rule(batch: str, params: dict[str, int], expected: int) -> None:
    (case,) = _cases(
        workloads=[{"name": "wide-mlp", **params}],
        strategies=["ps"],
        cluster={"workers": 3, "replicas_per_worker": 2},
        measure={"batch": batch},
    )
    assert global_batch(case, default=64) == expected


def test_fewer_examples_than_replicas_is_an_error() -> None:
    (case,) = _cases(strategies=["ps"], cluster={"workers": 3})
    with pytest.raises(
        UsageError, match=r"wide-mlp\.batch_size: must give each of 3 replicas an example, got 2"
    ):
        global_batch(case, default=2)


_COUNTS = st.integers(1, 5)


@given(_COUNTS, st.integers(0, 2**31 - 1), st.booleans())
def test_a_schedule_has_every_repeat_of_every_case_once(repeats: int, seed: int, interleave: bool) -> None:
    cases = _cases(cluster={"workers": [2, 3]})
    slots = schedule(cases, repeats=repeats, seed=seed, interleave=interleave, is_control=_is_control)
    assert [slot.order for slot in slots] == list(range(len(slots)))
    assert sorted((slot.case.id, slot.repeat) for slot in slots) == sorted(
        (case.id, repeat) for case in cases for repeat in range(repeats)
    )
    assert slots == schedule(cases, repeats=repeats, seed=seed, interleave=interleave, is_control=_is_control)


@given(_COUNTS, st.integers(0, 1000))
def test_blocks_are_of_one_shape_and_begin_with_their_controls(repeats: int, seed: int) -> None:
    cases = _cases(cluster={"workers": [2, 3]})
    slots = schedule(cases, repeats=repeats, seed=seed, interleave=True, is_control=_is_control)
    for repeat in range(repeats):
        turns = slots[repeat * len(cases) : (repeat + 1) * len(cases)]
        assert {slot.repeat for slot in turns} == {repeat}
        blocks = [list(block) for _, block in itertools.groupby(turns, lambda slot: slot.block)]
        assert len(blocks) == 2
        for block in blocks:
            assert len({slot.case.shape for slot in block if slot.case.strategy.name != "single"}) == 1
            assert [_is_control(slot.case) for slot in block] == [True] + [False] * (len(block) - 1)


def test_without_interleaving_a_case_is_finished_before_the_next() -> None:
    slots = schedule(_cases(), repeats=3, seed=0, interleave=False, is_control=_is_control)
    assert [slot.repeat for slot in slots] == [0, 1, 2] * 4
    assert _is_control(slots[0].case)


def test_rounds_and_seeds_differ_in_order() -> None:
    cases = _cases(cluster={"workers": [2, 3, 4]})
    orders = {
        tuple(
            slot.case.id
            for slot in schedule(cases, repeats=3, seed=seed, interleave=True, is_control=_is_control)
        )[start : start + len(cases)]
        for seed in (0, 1)
        for start in (0, len(cases), 2 * len(cases))
    }
    assert len(orders) == 6


def test_cases_of_one_site_run_in_a_row_and_are_interleaved_there() -> None:
    cases = _cases(cluster={"cores_per_worker": [1, 2], "workers": [1, 2]})
    turns = schedule(cases, repeats=2, seed=0, interleave=True, is_control=_is_control)
    cores = [turn.case.shape.cores_per_worker for turn in turns]
    assert cores == sorted(cores)
    half = len(turns) // 2
    repeats = [turn.repeat for turn in turns[:half]]
    assert repeats == sorted(repeats)
    assert len({turn.case.id for turn in turns[: half // 2]}) == half // 2


def twin_cases(**measure: Any) -> tuple[Case, ...]:
    strategies = ["single", "none", "ps:staleness=1"]
    document = {"name": "x", "workloads": ["digits-mlp"], "strategies": strategies}
    spec = resolve({**document, "measure": measure, "compare": {"baseline": "ps:staleness=1"}})
    assert resolve(spec.to_document()) == spec
    return expand(spec)


def test_the_twin_has_a_name_of_its_own_and_the_baselines_strategy() -> None:
    plain, result = twin_cases(), twin_cases(aa=True)
    assert result[: len(plain)] == plain
    (twin,) = result[len(plain) :]
    (baseline,) = (case for case in plain if case.strategy.name == "ps")
    assert str(twin.strategy) == "ps:aa=true,staleness=1"
    assert twin.id != baseline.id
    assert twin.chosen == baseline.chosen
    assert len(blocks_of(result)) == 1


def test_the_twin_is_compared_with_the_baseline_and_never_taken_for_it() -> None:
    twins = twin_cases(aa=True)
    baseline = next(case for case in twins if case.strategy.name == "ps" and not case.is_twin)
    alike = [case for case in twins if case.shape == baseline.shape]
    assert len(alike) == 3
    assert all(baseline_of(case, twins, baseline.strategy) == baseline for case in alike)


def test_a_name_that_a_person_gives_is_no_twin() -> None:
    document = {"name": "x", "workloads": ["digits-mlp"], "strategies": ["ps:aa=true"]}
    (case,) = expand(resolve(document))
    with pytest.raises(UsageError, match="aa"):
        _ = case.chosen


@pytest.mark.parametrize("settings", [{"aa": True}, {"until": {"ratio_ci": "3%"}}])
def test_what_is_formed_within_rounds_needs_them(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"measure\.interleave"):
        twin_cases(interleave=False, **settings)


def test_without_its_baseline_there_is_no_twin() -> None:
    strategies = ["single", "ps"]
    document = {"name": "x", "workloads": ["digits-mlp"], "strategies": strategies, "measure": {"aa": True}}
    with pytest.raises(UsageError, match=r"measure\.aa: must be used with the baseline"):
        expand(resolve({**document, "matrix": {"exclude": [{"strategy": "single"}]}}))
