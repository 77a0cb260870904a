"""Ray's terminal output goes to its log, other output does not."""

import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import ray

from harness.provision.ray.settings import chatter_in

OF_RAY = str(Path(ray.__file__).parent / "util" / "client" / "worker.py")


def raise_in_a_thread_of(filename: str) -> None:
    raising = compile("raise ConnectionError('the head has gone')", filename, "exec")
    thread = threading.Thread(target=lambda: exec(raising, {}))
    thread.start()
    thread.join()


def warn_in(filename: str) -> None:
    warnings.warn_explicit("connection timed out", UserWarning, filename, 335)


@pytest.mark.parametrize("speak", [raise_in_a_thread_of, warn_in])
@pytest.mark.parametrize("is_of_ray", [True, False])
@pytest.mark.filterwarnings("always")
def test_warnings_and_ends_of_threads_are_logged_where_they_are_of_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speak: Callable[[str], None], is_of_ray: bool
) -> None:
    printed: list[object] = []
    monkeypatch.setattr(warnings, "showwarning", lambda *message, **_: printed.append(message))
    monkeypatch.setattr(threading, "excepthook", printed.append)
    before = warnings.showwarning, threading.excepthook
    with chatter_in(tmp_path / "ray.log"):
        speak(OF_RAY if is_of_ray else __file__)
    logged = (tmp_path / "ray.log").read_text() if (tmp_path / "ray.log").exists() else ""
    assert bool(printed) is not is_of_ray
    assert (OF_RAY in logged) is is_of_ray
    assert (warnings.showwarning, threading.excepthook) == before
