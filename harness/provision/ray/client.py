"""Connection to a Ray cluster through its head's Ray Client server."""

import queue
import threading
import time
import warnings
from collections.abc import Callable
from typing import TypeVar, cast

import ray

from harness.errors import first_line
from harness.provision.failures import ProvisionError, RayEndedError
from harness.worker.process.reachability import ProbeAddress, is_reachable

_CONNECT_S = 60.0
_TRY_S = 1.0
_POLL_S = 0.05
_UP_S = 1.0
_BUSY_S = 4.0

Value = TypeVar("Value")


def connect(
    address: str,
    *,
    is_up: Callable[[], bool],
    wait_s: float = _CONNECT_S,
    way_out: str = "see the logs of its nodes in the run folder",
) -> None:
    """Connect this process to a cluster; `ray.shutdown` disconnects it.

    Args:
        address: `host:port` of the head's server, which may still be starting.
        is_up: returns False once Ray has ended, and waiting is pointless. wait_s: longest wait.
        way_out: instruction for the user if the server rejects this process.
    Raises:
        ProvisionError: the head does not answer, or rejects this process.
    """
    started_s = time.monotonic()
    probed = _probe_address(address)
    while not is_reachable(probed, _TRY_S):
        waited_s = time.monotonic() - started_s
        if not is_up() or waited_s > wait_s:
            raise ProvisionError(f"Ray's head at {address} did not answer within {waited_s:.1f} s; {way_out}")
        time.sleep(_POLL_S)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the next error contains the same in one line
            ray.init(f"ray://{address}", log_to_driver=False)
    except Exception as error:
        raise ProvisionError(
            f"Ray's head at {address} rejected this driver: {type(error).__name__}: "
            f"{first_line(str(error))}; {way_out}"
        ) from error


def while_up(call: Callable[[], Value], is_up: Callable[[], bool]) -> Value:
    """Make a call to Ray, and give it up once Ray has ended, because its client would retry forever.

    The thread of the call ends with the connection.

    Raises:
        RayEndedError: Ray has ended.
    """
    replies: queue.SimpleQueue[tuple[Value | None, BaseException | None]] = queue.SimpleQueue()

    def answer() -> None:
        try:
            replies.put((call(), None))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked
            replies.put((None, error))

    threading.Thread(target=answer, name="ray-call", daemon=True).start()
    while True:
        try:
            value, error = replies.get(timeout=_UP_S)
        except queue.Empty:
            if not is_up():
                raise RayEndedError("Ray has ended") from None
            continue
        if error is not None:
            raise error
        return cast("Value", value)


class Head:
    """Head of the connected cluster; others may end it.

    Args:
        address: `host:port` of its Ray Client server.
    """

    def __init__(self, address: str) -> None:
        self._address = _probe_address(address)
        self._has_ended = False

    def is_up(self) -> bool:
        """True if it accepts connections, with some patience for a busy one; once False, it stays False."""
        limit_s = time.monotonic() + _BUSY_S
        while not self._has_ended and not is_reachable(self._address, _TRY_S):
            self._has_ended = not ray.is_initialized() or time.monotonic() > limit_s
            time.sleep(_POLL_S)
        return not self._has_ended

    def call(self, request: Callable[[], Value]) -> Value:
        """Make a call to Ray that ends when the head does.

        Raises:
            RayEndedError: the head has ended.
        """
        if self._has_ended:
            raise RayEndedError("Ray has ended")
        return while_up(request, self.is_up)


def _probe_address(address: str) -> ProbeAddress:
    host, _, port = address.rpartition(":")
    return host, int(port)
