"""A real Prometheus and a real Pushgateway, the shipped rules and dashboard, and what a run gives them."""

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ports import kept_port
from prometheus_programs import program
from waiting import eventually

from harness.errors import UsageError
from harness.measure.live import Remaining, WindowProgress
from harness.measure.prometheus import listen, push_newest, serve_metrics
from harness.records.conditions import Method
from harness.records.outcome import Equivalence
from harness.records.record import Record
from harness.records.steps_file import Steps
from reports.rows.row import repeat_gauges

pytestmark = pytest.mark.prometheus

COMPOSE = Path(__file__).parents[2] / "harness" / "provision" / "compose"
METHOD = Method(seed=0, steps=50, warmup_rule="auto", interleave=True, batch_rule="global")
ALONE = Record(
    run="r",
    case="alone",
    repeat=0,
    order=0,
    experiment="night",
    workload="w",
    strategy="single",
    strategy_class="exact",
    provider="local",
    device="cpu",
    workers=1,
    replicas=1,
    status="ok",
    method=METHOD,
    examples_per_s=200.0,
    cpu_s_per_step=(0.1,),
    payload_bytes_per_step=0.0,
    tcp_bytes_per_step=0.0,
    exposed_comm_s=None,
    peak_rss_bytes=(5,),
    equivalence=Equivalence(checked=True, max_update_error=1e-7),
)
SERVED = replace(
    ALONE,
    case="ps",
    strategy="ps",
    strategy_params={"sync": True},
    workers=2,
    examples_per_s=100.0,
    payload_bytes_per_step=100.0,
    tcp_bytes_per_step=110.0,
    exposed_comm_s=0.01,
)
# The same in another precision is compared with its own.
NARROW = replace(METHOD, precision="bfloat16")
NARROW_ALONE = replace(ALONE, case="narrow-alone", method=NARROW, examples_per_s=400.0)
NARROW_SERVED = replace(SERVED, case="narrow-ps", method=NARROW)
FAILED = replace(SERVED, repeat=1, status="failed", examples_per_s=None, tcp_bytes_per_step=None)


def steps() -> Steps:
    import numpy as np

    n = 20
    ends = np.arange(1, n + 1, dtype=float) * 0.02
    return Steps(
        worker=np.zeros(n, np.int32),
        step=np.arange(n, dtype=np.int32),
        start_s=ends - 0.02,
        end_s=ends,
        loss=np.ones(n),
        warmup=np.zeros(n, bool),
        window=np.zeros(n, np.int32),
    )


def moment(case: str, strategy: str) -> WindowProgress:
    return WindowProgress(
        experiment="night",
        case=case,
        workload="w",
        strategy=strategy,
        provider="local",
        device="cpu",
        precision=METHOD.precision,
        xla=METHOD.xla,
        input=METHOD.input,
        n_rounds=3,
        n_all_rounds=10,
        examples_per_s=99.0,
        n_steps=7,
        payload_bytes=700.0,
        resident_bytes=10**8,
    )


@contextmanager
def running(name: str, *arguments: str) -> Iterator[None]:
    path = program(name)
    assert path is not None
    process = subprocess.Popen([path, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


def answer(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return str(response.read().decode())
    except (OSError, urllib.error.URLError):
        return None


def ask(server: str, expression: str) -> list[dict[str, Any]]:
    response = answer(f"{server}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
    return [] if response is None else list(json.loads(response)["data"]["result"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Prometheus with the shipped configuration, which has read a run's metrics."""
    folder = tmp_path_factory.mktemp("prometheus")
    with listen(0) as listener, kept_port() as port:
        target = listener.getsockname()[1]
        with serve_metrics(listener, "night", repeat_gauges(), print) as exporter:
            for record, name in ((ALONE, "single"), (SERVED, "ps:sync=true")):
                exporter.window(moment(record.case, name))
                exporter.ended(record, steps(), Remaining(n_repeats=3, seconds=42.0))
            for record in (NARROW_ALONE, NARROW_SERVED):
                exporter.ended(record, steps(), Remaining(n_repeats=3, seconds=42.0))
            exporter.ended(FAILED, None, Remaining(n_repeats=2, seconds=21.0))
            shipped = (COMPOSE / "prometheus.yml").read_text()
            assert "127.0.0.1:9464" in shipped
            (folder / "prometheus.yml").write_text(shipped.replace("127.0.0.1:9464", f"127.0.0.1:{target}"))
            (folder / "rules.yml").write_text((COMPOSE / "rules.yml").read_text())
            address = f"127.0.0.1:{port}"
            options = (
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            )
            with running("prometheus", *options):
                here = f"http://{address}"
                eventually(lambda: ask(here, "stratbench:throughput:ratio_to_single"), 60, "an answer")
                yield here


def test_a_prometheus_reads_what_a_run_serves(server: str) -> None:
    ratios = ask(server, 'stratbench:throughput:ratio_to_single{strategy="ps:sync=true"}')
    messages = {ratio["metric"]["precision"]: float(ratio["value"][1]) for ratio in ratios}
    assert messages == {"float32": 0.5, "bfloat16": 0.25}
    (total,) = ask(server, 'stratbench_repeats_total{status="failed"}')
    assert total["value"][1] == "1"
    (left,) = ask(server, "stratbench_remaining_seconds")
    assert left["value"][1] == "21"
    # What failed has no figure, and takes none away.
    (rate,) = ask(server, 'stratbench_throughput_examples_per_second{case="ps"}')
    assert rate["value"][1] == "100"


def test_an_alert_names_what_failed(server: str) -> None:
    eventually(lambda: ask(server, 'ALERTS{alertname="StratbenchRepeatsFailed"}'), 60, "an answer")
    (alert,) = ask(server, 'ALERTS{alertstate="firing"}')
    assert (alert["metric"]["strategy"], alert["metric"]["workload"]) == ("ps:sync=true", "w")


def test_every_panel_of_the_dashboard_has_an_answer(server: str) -> None:
    dashboard = json.loads((COMPOSE / "dashboard.json").read_text())
    source = yaml.safe_load((COMPOSE / "grafana.yml").read_text())["datasources"][0]
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {source["uid"]}
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) > len(dashboard["panels"]) - 1
    assert [expression for expression in expressions if not ask(server, expression)] == []


@pytest.mark.parametrize(("verb", "file"), [("check", "rules.yml"), ("test", "rules_test.yml")])
def test_rules_hold(verb: str, file: str) -> None:
    path = program("promtool")
    assert path is not None
    ran = subprocess.run(
        [path, verb, "rules", file], cwd=COMPOSE, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_failed_run_leaves_what_an_earlier_one_pushed() -> None:
    with kept_port() as port:
        gateway = f"http://127.0.0.1:{port}"
        with running("prometheus-pushgateway", f"--web.listen-address=127.0.0.1:{port}"):
            eventually(lambda: answer(f"{gateway}/-/ready"), 60, "an answer")
            assert push_newest([ALONE, SERVED], gateway, repeat_gauges()) == 2
            assert push_newest([replace(ALONE, examples_per_s=300.0), FAILED], gateway, repeat_gauges()) == 1
            page = answer(f"{gateway}/metrics")
        assert page is not None
        lines = [line for line in page.splitlines() if line.startswith("stratbench_throughput")]
        values = {line.partition('case="')[2].partition('"')[0]: line.split()[-1] for line in lines}
        assert values == {"alone": "300", "ps": "100"}
        assert 'strategy="ps:sync=true"' in page
        with pytest.raises(UsageError, match="push_gateway: must be the address of a Pushgateway"):
            push_newest([ALONE], gateway, repeat_gauges())
