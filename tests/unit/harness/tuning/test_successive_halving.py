"""Successive halving on made-up measurements: who goes on, who wins, and that noise alone wins nothing."""

import math
import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from harness.tuning.successive_halving import LEAST_CONFIRMING, MOST_CONFIRMING, Rung, is_faster, next_rung

NAMES = [f"c{number}" for number in range(11)]
Ratio = Callable[[str], float | None]
"""Candidate → logarithm of its ratio in one repeat; None where it crashes."""


def searched(
    ratio: Ratio, *, n_affordable: int, names: Sequence[str] = NAMES, seed: int = 0
) -> tuple[list[Rung], Sequence[float]]:
    """All rungs, and the ratios that the last one confirms by."""
    made: list[Rung] = []
    logs: dict[str, list[float]] = {name: [] for name in names}
    confirming: list[float] = []
    left = n_affordable
    while rung := next_rung(names, seed=seed, made=made, logs=logs, n_affordable=left):
        made.append(rung)
        n_repeats = min(rung.n_repeats, left // 2) if rung.confirms else rung.n_repeats
        left -= n_repeats * (len(rung.names) + 1)
        for name in rung.names:
            found = [ratio(name) for _ in range(n_repeats)]
            if None in found or name not in logs:
                logs.pop(name, None)
                continue
            logs[name] += [each for each in found if each is not None]
            confirming = logs[name][-n_repeats:] if rung.confirms else []
    assert left >= 0, "no more is begun than there is time for"
    return made, confirming


def noisy(true: Mapping[str, float], *, sd: float, seed: int) -> Ratio:
    draw = random.Random(seed)
    return lambda name: draw.gauss(math.log(true.get(name, 1.0)), sd)


def test_the_faster_half_goes_on_and_has_twice_as_many_repeats() -> None:
    rates = {name: 1.0 + place / 10 for place, name in enumerate(NAMES[:8])}
    made, _ = searched(lambda name: math.log(rates[name]), n_affordable=100, names=NAMES[:8])
    assert [(len(rung.names), rung.n_repeats, rung.confirms) for rung in made] == [
        (8, 1, False),
        (4, 1, False),
        (2, 2, False),
        (1, MOST_CONFIRMING, True),
    ]
    assert made[0].names != tuple(NAMES[:8]), "in a drawn order"
    assert set(made[1].names) == {"c7", "c6", "c5", "c4"}
    assert made[-1].names == ("c7",)


@pytest.mark.parametrize("n_affordable", range(60))
def test_time_decides_how_many_are_tried(n_affordable: int) -> None:
    made, confirming = searched(lambda _: 0.1, n_affordable=n_affordable)
    if n_affordable < 2:
        assert made == []
        return
    assert len(made[0].names) == 1 or len(confirming) >= LEAST_CONFIRMING
    # One repeat that selects, and three that confirm, of a candidate and the default.
    assert is_faster(confirming) == (n_affordable >= 2 * (1 + LEAST_CONFIRMING))


def test_the_best_is_confirmed_where_time_allows_no_other_rung() -> None:
    logs = {name: [place / 10] for place, name in enumerate(NAMES[:8])}
    made = [Rung(names=tuple(NAMES[:8]), n_repeats=1)]
    halved = next_rung(NAMES[:8], seed=0, made=made, logs=logs, n_affordable=5)
    assert halved == Rung(names=("c7", "c6", "c5", "c4"), n_repeats=1, number=1)
    assert next_rung(NAMES[:8], seed=0, made=made, logs=logs, n_affordable=4) == Rung(
        names=("c7",), n_repeats=MOST_CONFIRMING, number=1, confirms=True
    )


def test_the_runner_up_follows_one_that_fails_while_it_is_confirmed() -> None:
    made = [
        Rung(names=("a", "b", "c", "d"), n_repeats=1),
        Rung(names=("a", "b"), n_repeats=1, number=1),
        Rung(names=("a",), n_repeats=MOST_CONFIRMING, number=2, confirms=True),
    ]
    logs = {"b": [0.2, 0.2], "c": [0.1], "d": [0.1]}
    following = next_rung("abcd", seed=0, made=made, logs=logs, n_affordable=20)
    assert following == Rung(names=("b",), n_repeats=MOST_CONFIRMING, number=2, confirms=True)
    assert next_rung("abcd", seed=0, made=made, logs={**logs, "a": [0.3]}, n_affordable=20) is None


def test_equal_seeds_and_measurements_choose_alike_and_other_seeds_try_others() -> None:
    tried = [searched(noisy({}, sd=0.1, seed=5), n_affordable=24, seed=seed)[0] for seed in (0, 0, 1)]
    assert tried[0] == tried[1]
    assert set(tried[0][0].names) != set(tried[2][0].names)


def test_a_candidate_that_crashes_is_out_and_the_next_best_wins() -> None:
    def ratio(name: str) -> float | None:
        return None if name == "c3" else math.log(1.2 if name == "c4" else 1.0)

    made, confirming = searched(ratio, n_affordable=100)
    assert "c3" in made[0].names
    assert all("c3" not in rung.names for rung in made[1:])
    assert made[-1].names == ("c4",)
    assert is_faster(confirming)


def test_where_all_crash_there_is_no_more() -> None:
    made, _ = searched(lambda _: None, n_affordable=100)
    assert len(made) == 1


def test_where_none_is_faster_those_follow_that_there_was_no_time_for() -> None:
    names = [f"c{number}" for number in range(24)]
    made, confirming = searched(
        lambda name: math.log(1.3 if name == "c0" else 0.9), n_affordable=30, names=names, seed=1
    )
    assert "c0" not in made[0].names
    assert "c0" in made[1].names
    assert not set(made[0].names) & set(made[1].names)
    assert [rung.number for rung in made] == [0, 0, 1, 2]
    assert (made[-1].names, made[-1].confirms) == (("c0",), True)
    assert is_faster(confirming)


def test_where_none_is_faster_none_is_confirmed() -> None:
    made, _ = searched(lambda _: -0.05, n_affordable=100)
    assert not any(rung.confirms for rung in made)


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
        made, confirming = searched(noisy(better, sd=sd, seed=seed), n_affordable=50)
        won += made[-1].names == ("c6",) and is_faster(confirming)
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

        made, _ = searched(ratio, n_affordable=36)
        by_all += made[-1].confirms and is_faster(seen[made[-1].names[0]])
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
