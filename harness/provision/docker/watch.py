"""Failures of a run's containers, by the engine's events and by probes of their control links."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import docker

from harness.provision.docker.engine import GONE
from harness.provision.docker.leftovers import RUN_LABEL
from harness.worker.process.forked_process import STOPPED_S
from harness.worker.process.messages import CutOff, Died, Silent

_END_S = 5.0


class ContainerEvents:
    """Follows the engine's event stream in a thread, from its creation on.

    Args:
        client: client of the engine, which stays open.
        run_id: id of the run whose containers are followed.
    """

    def __init__(self, client: docker.DockerClient, run_id: str) -> None:
        self._deaths: dict[str, Died] = {}
        self._out_of_memory: set[str] = set()
        self._paused_from_s: dict[str, float] = {}
        self._is_over = False
        filters = {"type": "container", "label": f"{RUN_LABEL}={run_id}"}
        self._stream: Any = client.events(decode=True, filters=filters)
        self._thread = threading.Thread(target=self._follow, name="container-events", daemon=True)
        self._thread.start()

    def failure(self, container_id: str, stopped_s: float = STOPPED_S) -> Died | Silent | None:
        if container_id in self._deaths:
            return self._deaths[container_id]
        if self._is_over:
            # Containers do not outlive their engine; and without it, they cannot be monitored.
            return Died(what="container's engine", exit_code=None)
        from_s = self._paused_from_s.get(container_id)
        paused_s = 0.0 if from_s is None else time.monotonic() - from_s
        is_stopped = from_s is not None and paused_s >= stopped_s
        return Silent(waited_s=paused_s, is_stopped=True) if is_stopped else None

    def close(self) -> None:
        with suppress(*GONE):
            self._stream.close()
        self._thread.join(_END_S)

    def _follow(self) -> None:
        try:
            for event in self._stream:
                self._note(str(event["Action"]), event["Actor"])
        except (*GONE, ValueError):
            return  # the engine has ended, or this connection was closed in the middle of an event
        finally:
            self._is_over = True

    def _note(self, action: str, actor: dict[str, Any]) -> None:
        container_id = str(actor["ID"])
        match action:
            case "oom":
                self._out_of_memory.add(container_id)
            case "pause":
                self._paused_from_s[container_id] = time.monotonic()
            case "unpause":
                self._paused_from_s.pop(container_id, None)
            case "die":
                status = int(actor["Attributes"].get("exitCode", 0))
                self._deaths[container_id] = Died(
                    what="container",
                    exit_code=128 - status if status > 128 else status,
                    is_out_of_memory=container_id in self._out_of_memory,
                )


_PERIOD_S = 2.0
_WAIT_S = 3.0
_MISSES = 2  # a single one may be caused by a busy machine
_CLOSED_PORT = 1  # a reachable kernel refuses the connection, whatever runs there


class ControlLinks:
    """Probes each container periodically, in a thread.

    Ray takes half a minute or longer to report this, and for an actor without a network reports only its end.
    """

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}
        self._silent_from_s: dict[str, float] = {}
        self._n_missed: dict[str, int] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="control-links", daemon=True)
        self._thread.start()

    def watch(self, container_id: str, address: str) -> None:
        self._addresses[container_id] = address

    def forget(self, container_id: str) -> None:
        self._addresses.pop(container_id, None)

    def failure(self, container_id: str) -> CutOff | None:
        if self._n_missed.get(container_id, 0) < _MISSES:
            return None
        return CutOff(peer=None, waited_s=time.monotonic() - self._silent_from_s[container_id])

    def close(self) -> None:
        self._is_over.set()
        self._thread.join(_WAIT_S + _END_S)

    def _look(self) -> None:
        while not self._is_over.wait(_PERIOD_S):
            watched = dict(self._addresses)
            if not watched:
                continue
            asked_s = time.monotonic()
            with ThreadPoolExecutor(len(watched)) as pool:
                reached = dict(zip(watched, pool.map(is_reached, watched.values()), strict=True))
            for container_id, is_well in reached.items():
                if is_well:
                    self._n_missed.pop(container_id, None)
                else:
                    if container_id not in self._n_missed:
                        self._silent_from_s[container_id] = asked_s
                    self._n_missed[container_id] = self._n_missed.get(container_id, 0) + 1


def is_reached(address: str) -> bool:
    """True if anything answers at an address, even by a refusal."""
    try:
        socket.create_connection((address, _CLOSED_PORT), timeout=_WAIT_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
