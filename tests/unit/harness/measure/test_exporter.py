import dataclasses
import socket
import urllib.request

import numpy as np
import pytest
from ports import kept_port

from harness.errors import UsageError
from harness.measure.exporter import serve_metrics
from harness.measure.metrics_port import listen
from harness.records.record import Record
from harness.records.steps_file import Steps

RECORD = Record(
    run="r-1",
    case="c",
    repeat=0,
    order=0,
    workload="wide-mlp",
    strategy="ps",
    strategy_class="exact",
    provider="local",
    device="cpu",
    workers=2,
    replicas=1,
    status="ok",
    experiment="quickstart",
    examples_per_s=123.5,
    peak_rss_bytes=(7, None, 9),
)
STEPS = Steps(
    worker=np.zeros(3, np.int32),
    step=np.arange(3, dtype=np.int32),
    start_s=np.zeros(3),
    end_s=np.array([9.0, 0.04, 0.05]),
    loss=np.zeros(3),
    warmup=np.array([True, False, False]),
    window=np.array([-1, 0, 0], np.int32),
)


def test_serves_what_was_observed_without_run_ids() -> None:
    with kept_port() as port:
        page = f"http://127.0.0.1:{port}/metrics"
        with serve_metrics(listen(port)) as exporter:
            exporter.observe(RECORD, STEPS)
            exporter.observe(dataclasses.replace(RECORD, status="failed", examples_per_s=None))
            with urllib.request.urlopen(page, timeout=60) as response:
                text = response.read().decode()
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(page, timeout=60)
    labels = 'experiment="quickstart",provider="local",strategy="ps",workload="wide-mlp"'
    assert "stratbench_throughput_examples_per_second{" + labels + "} 123.5" in text
    assert "stratbench_step_seconds_count{" + labels + "} 2.0" in text
    assert "stratbench_peak_resident_bytes{" + labels + "} 9.0" in text
    assert 'status="failed"' in text
    assert 'status="ok"' in text
    assert "stratbench_payload_bytes_per_step{" not in text
    assert "r-1" not in text


def test_a_taken_port_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match="must be a free port"):
            listen(taken.getsockname()[1])
