"""Events of the containers of a run, by the engine's own account of them."""

import threading
import time
from contextlib import suppress
from typing import Any

import docker

from harness.provision.docker.engine import GONE
from harness.provision.docker.leftovers import RUN_LABEL
from harness.worker.process.forked_process import STOPPED_S
from harness.worker.process.messages import Died, Silent

_END_S = 5.0


class ContainerEvents:
    """Follows the engine's event stream in a thread of its own, from now on.

    Args:
        client: of the engine; not closed with this.
        run_id: of the run whose containers are followed.
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
        """What has become of a container; None while it is well, or paused for no longer than that."""
        if container_id in self._deaths:
            return self._deaths[container_id]
        if self._is_over:
            # Containers do not outlive their engine, and if one did, nobody could watch over it.
            return Died(what="container's engine", exit_code=None)
        from_s = self._paused_from_s.get(container_id)
        paused_s = 0.0 if from_s is None else time.monotonic() - from_s
        is_stopped = from_s is not None and paused_s >= stopped_s
        return Silent(waited_s=paused_s, is_stopped=True) if is_stopped else None

    def close(self) -> None:
        """Stop following."""
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
