import gc
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from harness.worker.session.timed_loop import run_steps


def batches(n: int) -> list[list[npt.NDArray[np.int64]]]:
    return [[np.asarray([index])] for index in range(n)]


def test_cycles_the_batches_from_the_numbered_step_on() -> None:
    seen: list[int] = []

    def step(feeds: Sequence[npt.NDArray[np.generic]]) -> list[float]:
        seen.append(int(feeds[0][0]))
        return [float(len(seen))]

    run_steps(step, batches(3), n_steps=2, first=0, n_losses=1)
    times = run_steps(step, batches(3), n_steps=5, first=2, n_losses=1)
    assert seen == [0, 1, 2, 0, 1, 2, 0]
    assert times.losses.tolist() == [[3.0], [4.0], [5.0], [6.0], [7.0]]


def test_steps_adjoin_and_times_rise() -> None:
    times = run_steps(lambda feeds: [1.0, np.asarray(2.0)], batches(1), n_steps=4, first=0, n_losses=2)
    assert times.start_s.shape == times.end_s.shape == (4,)
    assert times.losses.shape == (4, 2)
    assert np.array_equal(times.start_s[1:], times.end_s[:-1])
    assert (times.end_s >= times.start_s).all()


def test_the_garbage_collector_rests_and_is_back_after_an_error() -> None:
    def step(feeds: Sequence[npt.NDArray[np.generic]]) -> list[float]:
        assert not gc.isenabled()
        raise KeyError("step")

    assert gc.isenabled()
    with pytest.raises(KeyError):
        run_steps(step, batches(1), n_steps=1, first=0, n_losses=1)
    assert gc.isenabled()
