"""A connection to a Ray cluster, through the server that its head has for those outside it, and its end."""

import queue
import threading
import time
import warnings
from collections.abc import Callable
from typing import TypeVar, cast

import ray

from harness.errors import first_line
from harness.provision.failures import ProvisionError
from harness.worker.door import answers

_CONNECT_S = 60.0
_TRY_S = 1.0
_POLL_S = 0.05
_UP_S = 1.0

Value = TypeVar("Value")


def connect(
    address: str,
    *,
    is_up: Callable[[], bool],
    wait_s: float = _CONNECT_S,
    way_out: str = "see the logs of its nodes in the run folder",
) -> None:
    """Connect this process to a cluster; `ray.shutdown` ends that.

    Args:
        address: `host:port` of the head's server, which may still be starting.
        is_up: whether it makes sense to go on waiting. wait_s: how long at most.
        way_out: what to do where it does not let this process in.
    Raises:
        ProvisionError: it does not answer.
    """
    started_s = time.monotonic()
    host, _, port = address.rpartition(":")
    while not answers((host, int(port)), _TRY_S):
        waited_s = time.monotonic() - started_s
        if not is_up() or waited_s > wait_s:
            raise ProvisionError(
                f"Ray's head must answer at {address}, got no answer within {waited_s:.1f} s; {way_out}"
            )
        time.sleep(_POLL_S)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error that follows says the same in one line
            ray.init(f"ray://{address}", log_to_driver=False)
    except Exception as error:
        raise ProvisionError(
            f"Ray's head at {address} must let this driver in, got {type(error).__name__}: "
            f"{first_line(str(error))}; {way_out}"
        ) from error


def while_up(call: Callable[[], Value], is_up: Callable[[], bool]) -> Value:
    """Make a call of Ray's and give it up when Ray has ended: its client would try again for ever.

    The thread that makes it ends with the connection.

    Raises:
        ConnectionError: Ray has ended.
    """
    answers: queue.SimpleQueue[tuple[Value | None, BaseException | None]] = queue.SimpleQueue()

    def answer() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked
            answers.put((None, error))

    threading.Thread(target=answer, name="ray-call", daemon=True).start()
    while True:
        try:
            value, error = answers.get(timeout=_UP_S)
        except queue.Empty:
            if not is_up():
                raise ConnectionError("Ray has ended") from None
            continue
        if error is not None:
            raise error
        return cast("Value", value)
