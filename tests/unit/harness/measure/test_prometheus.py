""" """

import dataclasses
import re
import socket
import struct
import subprocess
import threading
import urllib.request
from importlib import metadata
from types import SimpleNamespace

import numpy as np
import pytest
from open_folders import made_record
from ports import kept_port
from prometheus_client.parser import text_string_to_metric_families
from prometheus_programs import program

from harness.errors import UsageError
from harness.experiment.cases import expand
from harness.experiment.load import resolve
from harness.experiment.schedule import Slot
from harness.measure import prometheus as exporters
from harness.measure.live import Remaining, WindowProgress
from harness.measure.prometheus import (
    FORMER,
    INFO_LABELS,
    LABELS,
    METRICS,
    NIGHT_METRICS,
    PREFIX,
    SERIES_LABELS,
    Exporter,
    NightFigures,
    SeriesFigure,
    labels_of,
    listen,
    metric_of,
    night_page,
    push_newest,
    serve_metrics,
)
from harness.records.conditions import Method
from harness.records.record import Record
from harness.records.steps_file import Steps
from harness.run.recorder import RunRecorder
from reports.rows.row import repeat_gauges

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
    method=Method(
        seed=0,
        steps=50,
        warmup_rule="auto",
        interleave=True,
        batch_rule="global",
        precision="bfloat16",
        xla=True,
        input="pipeline",
    ),
    examples_per_s=123.5,
    peak_rss_bytes=(7, None, 9),
)
LABELS_TEXT = 'case="c",experiment="quickstart"'
INFO_TEXT = (
    'case="c",device="cpu",experiment="quickstart",input="pipeline",precision="bfloat16",provider="local",'
    'strategy="ps",workload="wide-mlp",xla="true"'
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
        with serve_metrics(listen(port), "quickstart", repeat_gauges(), print) as exporter:
            exporter.ended(RECORD, STEPS, Remaining(n_repeats=3, seconds=None))
            failed = dataclasses.replace(RECORD, status="failed", examples_per_s=None)
            exporter.ended(failed, None, Remaining(n_repeats=2, seconds=9.5))
            with urllib.request.urlopen(page, timeout=60) as response:
                text = response.read().decode()
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(page, timeout=60)
    assert "stratbench_throughput_examples_per_second{" + LABELS_TEXT + "} 123.5" in text
    assert "stratbench_step_seconds_count{" + LABELS_TEXT + "} 2.0" in text
    assert "stratbench_peak_resident_bytes{" + LABELS_TEXT + "} 9.0" in text
    assert 'status="failed"' in text
    assert 'status="ok"' in text
    assert "payload_bytes_per_step{" not in text
    assert "r-1" not in text
    assert "stratbench_run_info{" + INFO_TEXT + "} 1.0" in text
    for name, value in {"remaining_repeats": 2.0, "repeats_left": 2.0, "remaining_seconds": 9.5}.items():
        assert f'stratbench_{name}{{experiment="quickstart"}} {value}' in text


def test_state_and_version_are_there_from_the_first_second() -> None:
    exporter = Exporter("quickstart", repeat_gauges(), print)

    def states() -> dict[str, float]:
        families = text_string_to_metric_families(exporter.page.decode())
        samples = {family.name: family.samples for family in families}
        assert samples["stratbench_build_info"][0].labels == {"version": metadata.version("stratbench")}
        return {sample.labels["state"]: sample.value for sample in samples["stratbench_run_state"]}

    assert states() == {"starting": 1.0, "measuring": 0.0, "finished": 0.0}
    exporter.ended(RECORD, STEPS, Remaining(n_repeats=3, seconds=None))
    assert states() == {"starting": 0.0, "measuring": 1.0, "finished": 0.0}
    exporter.ended(RECORD, STEPS, Remaining(n_repeats=0, seconds=0.0))
    assert states() == {"starting": 0.0, "measuring": 0.0, "finished": 1.0}


def test_a_taken_port_is_one_line() -> None:
    with socket.socket() as blocker:
        blocker.bind(("127.0.0.1", 0))
        blocker.listen()
        with pytest.raises(UsageError, match="must be a free port"):
            listen(blocker.getsockname()[1])


def moment(number: int) -> WindowProgress:
    return WindowProgress(
        experiment="quickstart",
        case="c",
        workload="wide-mlp",
        strategy="ps",
        provider="local",
        device="cpu",
        precision="bfloat16",
        xla=True,
        input="pipeline",
        n_rounds=number,
        n_all_rounds=10,
        examples_per_s=100.0 * number,
        n_steps=7,
        payload_bytes=700.0,
        resident_bytes=2**20,
        at_s=1e9 + number,
    )


def test_what_goes_on_is_shown_at_most_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 50.0
    monkeypatch.setattr(exporters, "time", SimpleNamespace(monotonic=lambda: now_s))
    exporter = Exporter("quickstart", repeat_gauges(), print)
    exporter.window(moment(1))
    assert LABELS_TEXT not in exporter.page.decode()
    now_s += 1.0
    exporter.window(moment(2))
    page = exporter.page.decode()
    for name, value in {
        "under_way": "1.0",
        "rounds_done": "2.0",
        "rounds_expected": "10.0",
        "window_examples_per_second": "200.0",
        "steps_total": "14.0",
        "predicted_sent_bytes_total": "1400.0",
        "sent_bytes_total": "1400.0",
        "resident_bytes": "1.048576e+06",
        "last_sign_timestamp_seconds": "1.000000002e+09",
    }.items():
        assert f"stratbench_{name}{{{LABELS_TEXT}}} {value}" in page
    exporter.ended(RECORD, STEPS, Remaining(n_repeats=0, seconds=0.0))
    assert f"stratbench_under_way{{{LABELS_TEXT}}} 0.0" in exporter.page.decode()


def test_a_mistake_in_metrics_is_noted_and_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> bytes:
        raise RuntimeError("no such family\nof metrics")

    notes: list[str] = []
    exporter = Exporter("quickstart", repeat_gauges(), notes.append)
    monkeypatch.setattr(exporters, "generate_latest", fail)
    exporter.ended(RECORD, STEPS, Remaining(n_repeats=1, seconds=None))
    assert notes == ["metrics: RuntimeError: no such family"]


def test_an_interrupt_in_metrics_is_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> bytes:
        raise KeyboardInterrupt

    exporter = Exporter("quickstart", repeat_gauges(), print)
    monkeypatch.setattr(exporters, "generate_latest", interrupt)
    with pytest.raises(KeyboardInterrupt):
        exporter.ended(RECORD, STEPS, Remaining(n_repeats=1, seconds=None))


def test_who_leaves_early_is_not_heard_of(capfd: pytest.CaptureFixture[str]) -> None:
    with kept_port() as port, serve_metrics(listen(port), "quickstart", repeat_gauges(), print):
        for output in (b"GET /metr", b"GET /metrics HTTP/1.0\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as leaving:
                leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                leaving.sendall(output)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
            assert response.status == 200
    assert capfd.readouterr().err == ""


def test_each_case_of_an_experiment_has_labels_of_its_own() -> None:
    sweeps = {"workers": [2, 3], "cores_per_worker": [1, 2], "link": {"rate_mbit": [None, 100]}}
    document = {
        "name": "sweeps",
        "workloads": ["digits-mlp", {"name": "digits-mlp", "batch_size": 32}],
        "strategies": ["single", "ps", "ps:sync=false"],
        "cluster": {"provider": "docker", **sweeps},
        "measure": {"precision": ["float32", "bfloat16"], "xla": [False, True]},
    }
    spec = resolve(document)
    cases = expand(spec)
    recorder = RunRecorder(spec=spec, run="r")
    slots = [Slot(case=case, repeat=0, order=0, block=0) for case in cases]
    records = [recorder.skipped(slot, "unsupported", "left out") for slot in slots]
    assert all(set(labels_of(record)) == set(INFO_LABELS) for record in records)
    assert len({tuple(labels_of(record).values()) for record in records}) == len(cases) > 100
    readable = {tuple(v for k, v in labels_of(record).items() if k != "case") for record in records}
    # Two workloads, three strategies, and how steps compute.
    assert len(readable) == 2 * 3 * 2 * 2


def test_another_input_is_another_series() -> None:
    assert RECORD.method is not None
    staged = dataclasses.replace(RECORD, method=dataclasses.replace(RECORD.method, input="staged"))
    assert labels_of(staged) == labels_of(RECORD) | {"input": "staged"}


TOLD = "push_gateway: must be the address of a Pushgateway, such as"


@pytest.mark.parametrize("url", ["http://127.0.0.1:abc", "nonsense://x", "http://127.0.0.1:1"])
def test_what_is_no_address_is_named(url: str) -> None:
    with pytest.raises(UsageError, match=TOLD):
        push_newest([made_record(examples_per_s=1.0)], url, repeat_gauges())


def test_something_that_speaks_no_http_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"SSH-2.0-OpenSSH_9\r\n\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(UsageError, match=TOLD):
            push_newest(
                [made_record(examples_per_s=1.0)],
                f"http://127.0.0.1:{server.getsockname()[1]}",
                repeat_gauges(),
            )
        thread.join()


ALL = (*METRICS, *map(metric_of, repeat_gauges()))


@pytest.mark.parametrize("item", ALL, ids=lambda item: item.name)
def test_metrics_follow_the_naming_rules(item) -> None:
    assert re.fullmatch(rf"{PREFIX}[a-z][a-z_]*", item.name)
    assert (item.type == "counter") == item.name.endswith("_total")
    assert not re.search(r"(_ms|_millis|_mb|_kb|_us)(_|$)", item.name)
    known = (LABELS, (*LABELS, "status"), INFO_LABELS, ("experiment",), ("experiment", "state"), ("version",))
    assert item.labels in known
    assert (item.type == "histogram") == bool(item.buckets)
    assert list(item.buckets) == sorted(item.buckets)


def test_names_are_unique() -> None:
    names = {item.name.removeprefix(PREFIX) for item in ALL}
    assert len(names) == len(ALL)
    assert set(FORMER) <= names
    assert names.isdisjoint(FORMER.values())


def test_gauges_of_repeats_are_those_that_dashboards_know() -> None:
    assert {gauge.name for gauge in repeat_gauges()} >= {
        "throughput_examples_per_second",
        "predicted_payload_bytes_per_step",
        "tcp_bytes_per_step",
        "exposed_communication_seconds",
        "update_error_ratio",
        "peak_resident_bytes",
        "cpu_seconds_per_step",
    }


HOSTILE = 'a "b" \\n c\\\nd {e="f"} \N{SNOWMAN}'
SERIES = dict.fromkeys(SERIES_LABELS[1:], HOSTILE)
NIGHT = NightFigures(
    experiment=HOSTILE,
    began_s=1.7e9,
    n_by_state={"ok": 1, "regressed": 1, "missed": 0},
    n_lost=2,
    series=(
        SeriesFigure(labels=SERIES, value=321.5),
        SeriesFigure(labels={**SERIES, "metric": "rate"}, value=7.0, regression=0.8),
    ),
)


def samples(night: NightFigures) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Name and labels → value, as Prometheus reads the page."""
    families = text_string_to_metric_families(night_page(night).decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def test_a_page_reads_back_as_the_night_that_went_in() -> None:
    experiment = ("experiment", HOSTILE)
    plain, worse = (frozenset([*series.labels.items(), experiment]) for series in NIGHT.series)
    assert samples(NIGHT) == {
        ("stratbench_nightly_timestamp_seconds", frozenset([experiment])): 1.7e9,
        ("stratbench_nightly_regressed", frozenset([experiment])): 1.0,
        ("stratbench_nightly_cases_without_figure", frozenset([experiment])): 2.0,
        ("stratbench_nightly_series", frozenset([experiment, ("state", "ok")])): 1.0,
        ("stratbench_nightly_series", frozenset([experiment, ("state", "regressed")])): 1.0,
        ("stratbench_nightly_series", frozenset([experiment, ("state", "missed")])): 0.0,
        ("stratbench_nightly_figure", plain): 321.5,
        ("stratbench_nightly_figure", worse): 7.0,
        ("stratbench_nightly_regression_ratio", worse): 0.8,
    }


@pytest.mark.parametrize("item", NIGHT_METRICS, ids=lambda item: item.name)
def test_metrics_of_a_night_have_names_of_their_own(item) -> None:
    assert re.fullmatch(rf"{PREFIX}nightly_[a-z_]*[a-z]", item.name)
    assert item.name not in {other.name for other in METRICS}
    assert "run" not in item.labels


@pytest.mark.prometheus
def test_promtool_has_nothing_to_say_of_a_page() -> None:
    promtool = program("promtool")
    assert promtool is not None
    done = subprocess.run(
        [promtool, "check", "metrics"], input=night_page(NIGHT), capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
