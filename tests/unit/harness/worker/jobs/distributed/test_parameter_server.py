import time

import numpy as np
import pytest

from harness.worker.jobs.distributed.parameter_server import rounds


def test_a_step_is_over_when_another_closure_for_each_worker_is() -> None:
    now_s = time.time()
    # Worker 0 makes five closures while worker 1 makes one; who made them does not matter.
    ended_s = now_s + np.asarray([1.0, 2.0, 3.0, 4.0, 5.0, 5.5])
    start_s, end_s = rounds(ended_s, began_s=now_s, n_workers=2)
    assert end_s - start_s == pytest.approx([2.0, 2.0, 1.5])
    assert start_s[1:] == pytest.approx(end_s[:-1])
    assert start_s[0] == pytest.approx(time.monotonic(), abs=60.0)


def test_a_worker_whose_clock_is_behind_ends_no_step_before_it_began() -> None:
    now_s = time.time()
    start_s, end_s = rounds(now_s + np.asarray([-0.5, 1.0]), began_s=now_s, n_workers=1)
    assert end_s - start_s == pytest.approx([0.0, 1.0])
