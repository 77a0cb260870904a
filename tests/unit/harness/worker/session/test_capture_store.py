"""Initial values on disk, as several workers of one process read them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from harness.worker.session import capture_store
from harness.worker.session.capture_store import InitialValues, save_values


def test_no_two_threads_parse_a_file_at_once(tmp_path, monkeypatch):
    save_values(tmp_path, {"a": np.arange(3), "b": np.arange(4)})
    initial, load = InitialValues(tmp_path), np.load
    inside = threading.Semaphore(1)
    alone = []

    def watched(*args, **kwargs):
        alone.append(inside.acquire(blocking=False))
        # The others' turn, if they may take it.
        threading.Event().wait(0.01)
        try:
            return load(*args, **kwargs)
        finally:
            if alone[-1]:
                inside.release()

    monkeypatch.setattr(capture_store.np, "load", watched)
    with ThreadPoolExecutor(4) as threads:
        read = list(threads.map(initial.value, ["a", "b"] * 4))
    assert all(alone)
    assert [len(value) for value in read] == [3, 4] * 4
