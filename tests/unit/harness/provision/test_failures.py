"""What a failure of a worker says, and what it names as the way out."""

import pytest

from harness.provision.failures import Awaited, worker_unresponsive
from harness.worker.process.messages import Silent


@pytest.mark.parametrize("is_stopped", [False, True])
def test_who_waited_in_vain_learns_how_to_wait_longer(is_stopped: bool) -> None:
    awaited = Awaited(worker=0, what="capture", waited_s=300.0, log=None, stage="capture", is_log_kept=False)
    error = worker_unresponsive(Silent(waited_s=300.0, is_stopped=is_stopped), awaited)
    assert "answer from capture within 300.0 s; " in error.message
    assert ("--timeout-factor 4" in error.message) is not is_stopped
