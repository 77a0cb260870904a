"""One small run, end to end: what it records, what it writes, and what it leaves and touches meanwhile."""

import json
import math
import os
import re
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from ports import kept_port
from reach import Address, answering, listening
from waiting import eventually
from watched_run import WatchedRun, records, records_so_far, watched

from harness.measure.windows import LEAD_STEPS
from harness.provision import network_namespace
from harness.records.stored_run import load_run
from reports.recommendation.notes import ALARM_FLOOR_BYTES

pytestmark = [pytest.mark.ray, pytest.mark.tensorflow]

MISTAKES = """
import keras
import tensorflow as tf

from workloads import TrainStep


class Diverges:
    name = "diverges"
    batch_size = 8
    flops_per_example = None

    def train_step(self):
        weight = tf.Variable(tf.ones((4, 1)), name="weight")
        optimizer = keras.optimizers.SGD(1e30)
        optimizer.build([weight])
        print("chatter of the user's own")

        def loss(batch):
            return self.value(tf.square(batch @ weight))

        return TrainStep(loss=loss, variables=[weight], optimizer=optimizer)

    def value(self, squares):
        return tf.reduce_mean(squares)

    def dataset(self, seed):
        return tf.data.Dataset.from_tensor_slices(tf.ones((16, 4)))


class Raises(Diverges):
    name = "raises"

    def value(self, squares):
        raise ValueError("of the user's own")
"""
CONTRACT = """
    schema run case repeat order workload strategy strategy_params class provider device workers
    replicas batch_size status error examples_per_s step_s warmup_steps payload_bytes_per_step
    tcp_bytes_per_step interface_bytes_per_step tcp_matrix exposed_comm_s codec_s transform_s import_s
    provision_s nodes_before nodes_after peak_rss_bytes loss equivalence link
"""
REFUSAL = network_namespace.refusal()
needs_namespaces = pytest.mark.skipif(REFUSAL is not None, reason=f"{REFUSAL}")
GOOD, N_STEPS, N_REPEATS = "digits-mlp", 12, 2
N_ROUNDS = 2
N_ALL_STEPS = 2 + N_STEPS + N_ROUNDS * LEAD_STEPS
COMPRESSED = "all-reduce:compressor=bf16"
STRATEGIES = ("single", "none", "ps", "all-reduce", COMPRESSED)
DIVERGING = ("single", "ps")
N_FAILED_CASES = len(STRATEGIES) + len(DIVERGING)


@dataclass(frozen=True)
class Reach:
    """Listening sockets of a run while a worker has a server.

    Attributes:
        inside: addresses that the run sees. outside: addresses that others on this host see.
        answering: addresses with a port of `inside` that accepted a connection from outside.
    """

    inside: set[Address]
    outside: set[Address]
    answering: set[Address]

    @staticmethod
    def of(run: WatchedRun) -> "Reach":
        driver = run.process.pid
        results: list[Reach] = []

        def listens(*, seen_by: int) -> set[Address]:
            return listening({driver, *run.processes()}, seen_by=seen_by)

        def is_everywhere() -> bool:
            return any(host in {"0.0.0.0", "::"} for host, _ in listens(seen_by=driver))

        def is_seen() -> bool:
            if not is_everywhere():
                return False
            os.kill(driver, signal.SIGSTOP)  # so that it ends no case, and with it the server
            try:
                if is_everywhere():
                    inside, outside = listens(seen_by=driver), listens(seen_by=os.getpid())
                    answers = answering({port for _, port in inside})
                    results.append(Reach(inside=inside, outside=outside, answering=answers))
            finally:
                os.kill(driver, signal.SIGCONT)
            return bool(results)

        eventually(is_seen, 120.0, "a server of TensorFlow's listens on every address")
        return results[0]


@dataclass
class Finished:
    """A run that is over."""

    out: Path
    status: int
    output: str
    errors: str
    leftovers: list[str]
    metrics: str
    metrics_port: int
    reach: "Reach"
    mapped: set[str] = field(default_factory=set)
    in_use: str = ""

    def records(self, **wanted: object) -> list[dict[str, Any]]:
        return [r for r in records(self.out) if all(r[key] == value for key, value in wanted.items())]

    def of(self, strategy: str) -> list[dict[str, Any]]:
        """Repeats of a strategy, with its parameters, on the workload that works."""
        name, _, compressor = strategy.partition(":compressor=")
        repeats = self.records(workload=GOOD, strategy=name)
        return [r for r in repeats if r["strategy_params"].get("compressor", "") == compressor]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """Started elsewhere, with a workload beside it, a foreign cluster's address and no home to write to."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "mine.py").write_text(MISTAKES)
    out = elsewhere / "runs" / "out"
    workloads = f"{GOOD}:units=16,mine.py:Diverges,mine.py:Raises"
    command = f"run quickstart --workloads {workloads} --strategies {','.join(STRATEGIES)}"
    options = f"--steps {N_STEPS} --warmup 2 --repeats {N_REPEATS} --checkpoint --out runs/out"
    options += f" --set measure.window_s=0 --set measure.rounds={N_ROUNDS}"
    excluded = [{"workload": "mine.py:Diverges", "strategy": name} for name in ("none", "all-reduce")]
    arguments = [*command.split(), *options.split(), "--set", f"matrix.exclude={json.dumps(excluded)}"]
    mapped: set[str] = set()
    with (
        kept_port() as port,
        watched([*arguments, "--metrics-port", str(port)], elsewhere, RAY_ADDRESS="203.0.113.1:6379") as run,
    ):
        eventually(lambda: len(records_so_far(out)) >= 2, 240.0, "two repeats end")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            metrics = answer.read().decode()
        reach = Reach.of(run)
        maps = Path(f"/proc/{run.process.pid}/maps")
        mapped |= {Path(line.split()[-1]).name for line in maps.read_text().splitlines() if "/" in line}
        with watched([*arguments, "--resume"], elsewhere) as second:
            in_use = second.finish()[2].splitlines()[-1]
        status, output, errors = run.finish()
        yield Finished(
            out=out,
            status=status,
            output=output,
            errors=errors,
            leftovers=run.leftovers(),
            metrics=metrics,
            metrics_port=port,
            reach=reach,
            mapped=mapped,
            in_use=in_use,
        )
    shutil.rmtree(elsewhere)


def test_a_mistake_in_one_workload_leaves_the_others_their_results(finished: Finished) -> None:
    assert finished.status == 2, finished.errors
    n_records = (len(STRATEGIES) + N_FAILED_CASES) * N_REPEATS
    assert [record["order"] for record in finished.records()] == list(range(n_records))
    assert {r["status"] for r in finished.records(workload=GOOD)} == {"ok"}
    raising = finished.records(workload="mine.py:Raises")
    assert {(r["status"], r["error"]["type"], r["error"]["stage"]) for r in raising} == {
        ("failed", "user-error", "capture")
    }
    assert all("ValueError: of the user's own" in record["error"]["message"] for record in raising)
    diverging = finished.records(workload="mine.py:Diverges")
    assert {r["strategy"] for r in diverging} == set(DIVERGING)
    assert {(r["status"], r["error"]["type"]) for r in diverging} == {("failed", "non-finite-loss")}
    assert all("step 1: the loss is not finite" in r["error"]["message"] for r in diverging)


def test_every_record_has_the_contracts_fields_and_null_for_what_is_missing(finished: Finished) -> None:
    for record in finished.records():
        assert set(record) >= set(CONTRACT.split())
        compressed = bool(record["strategy_params"].get("compressor"))
        assert (record["codec_s"] is not None) is (compressed and record["status"] == "ok")
        assert record["exposed"] is (REFUSAL is not None)
        assert record["link"] == {"requested_mbit": None, "measured_mbit": None, "workers": None}
    for record in finished.records(status="failed"):
        measured = (
            "examples_per_s",
            "step_s",
            "tcp_matrix",
            "interface_bytes_per_step",
            "loss",
            "exposed_comm_s",
            "peak_rss_bytes",
            "variable_bytes",
        )
        assert all(record[name] is None for name in measured)


def test_what_was_measured_is_consistent(finished: Finished) -> None:
    for record in finished.records(status="ok"):
        workers = record["workers"]
        assert workers == (1 if record["strategy"] == "single" else 2)
        assert record["step_s"]["n"] == N_STEPS
        assert len(record["loss"]) == N_STEPS + N_ROUNDS * LEAD_STEPS
        assert record["warmup_steps"] == 2
        assert 0 < record["step_s"]["p50"] <= record["step_s"]["p90"] <= record["step_s"]["p99"]
        assert record["examples_per_s"] > 0
        assert len(record["peak_rss_bytes"]) == workers
        assert all(peak > 50e6 for peak in record["peak_rss_bytes"])
        assert len(record["cpu_s_per_step"]) == workers
        # No more than all cores can have given to all steps.
        most_s = record["wall_s"] * record["machine"]["n_cores"] / record["rounds"]["n_made"]
        assert all(0 < cpu_s <= most_s for cpu_s in record["cpu_s_per_step"])
        energy = record["energy"]
        assert (energy["package_j_per_step"] is None) == (energy["why_no_package"] is not None)
        own = [n > 0 for n in record["variable_bytes"]]
        assert own == ([True, False] if record["strategy"] == "ps" else [True] * workers)
        assert [len(row) for row in record["tcp_matrix"]] == [workers] * workers
        assert math.fsum(map(math.fsum, record["tcp_matrix"])) == pytest.approx(record["tcp_bytes_per_step"])
        passes_s = math.fsum(timing["seconds"] for timing in record["passes"])
        assert 0 < passes_s < 1.001 * record["transform_s"]
        assert record["passes"][0]["name"] == "fuse-updates"
        assert all(timing["nodes"] > 0 for timing in record["passes"])
        assert record["import_s"] > 0
        assert record["provision_s"] > 0
        assert all(record["tcp_matrix"][task][task] == 0 for task in range(workers))


def test_who_communicates_sends_its_payload_and_who_does_not_sends_nothing(finished: Finished) -> None:
    for strategy in ("single", "none"):
        for record in finished.records(workload=GOOD, strategy=strategy):
            assert record["payload_bytes_per_step"] == record["tcp_bytes_per_step"] == 0
    for strategy in ("ps", "all-reduce"):
        for record in finished.of(strategy):
            layers = [record[f"{layer}_bytes_per_step"] for layer in ("payload", "tcp", "interface")]
            assert 0 < layers[0] <= layers[1]
            assert layers[2] is None if REFUSAL else layers[1] <= layers[2]


@needs_namespaces
def test_an_interface_carries_little_that_is_not_of_the_strategy(finished: Finished) -> None:
    for record in finished.records(workload=GOOD):
        assert record["interface_bytes_per_step"] - record["tcp_bytes_per_step"] < ALARM_FLOOR_BYTES


@needs_namespaces
def test_nothing_of_a_run_is_reached_from_outside_but_its_metrics(finished: Finished) -> None:
    assert finished.reach.outside == {("127.0.0.1", finished.metrics_port)}
    assert finished.reach.answering == set()


def test_equivalence_is_checked_once_and_copied_to_every_repeat(finished: Finished) -> None:
    for strategy in ("single", "none", "ps", "all-reduce"):
        verdicts = [r["equivalence"] for r in finished.of(strategy)]
        assert len(verdicts) == N_REPEATS
        assert all(verdict == verdicts[0] for verdict in verdicts)
        assert verdicts[0]["checked"] is True
        assert verdicts[0]["checked_in_repeat"] == 0
        assert verdicts[0]["equivalent"] is (strategy != "none")
        assert (verdicts[0]["max_update_error"] <= verdicts[0]["tolerance"]) is (strategy != "none")


def test_a_compressed_strategy_is_held_to_its_bound(finished: Finished) -> None:
    repeats = finished.of(COMPRESSED)
    assert {r["class"] for r in repeats} == {"bounded"}
    verdicts = [r["equivalence"] for r in repeats]
    assert len(verdicts) == N_REPEATS
    assert all(verdict == verdicts[0] for verdict in verdicts)
    assert (verdicts[0]["checked"], verdicts[0]["checked_in_repeat"]) == (True, 0)
    assert (verdicts[0]["equivalent"], verdicts[0]["within_bound"]) == (None, True)
    assert verdicts[0]["separable"] is True


def test_exposed_communication_is_the_time_above_the_control_of_the_same_repeat(finished: Finished) -> None:
    for repeat in range(N_REPEATS):
        (control,) = finished.records(workload=GOOD, strategy="none", repeat=repeat)
        assert (control["exposed_comm_s"], control["control"], control["class"]) == (None, True, "control")
        for strategy in ("ps", "all-reduce", COMPRESSED):
            (record,) = [r for r in finished.of(strategy) if r["repeat"] == repeat]
            pairs = zip(record["rounds"]["step_s"], control["rounds"]["step_s"], strict=True)
            differences_s = [own_s - none_s for own_s, none_s in pairs]
            assert record["exposed_comm_s"] == pytest.approx(median(differences_s))
        (single,) = finished.records(workload=GOOD, strategy="single", repeat=repeat)
        assert single["exposed_comm_s"] is None, "the control has another shape"


def test_cases_of_a_workload_take_their_windows_in_the_same_rounds(finished: Finished) -> None:
    for repeat in range(N_REPEATS):
        together = [r["rounds"] for r in finished.records(workload=GOOD, repeat=repeat)]
        assert len({rounds["block"] for rounds in together}) == 1
        assert {(len(r["step_s"]), r["n_steps"], r["n_lead"]) for r in together} == {
            (N_ROUNDS, N_STEPS // N_ROUNDS, LEAD_STEPS)
        }
        (single,) = finished.records(workload=GOOD, strategy="single", repeat=repeat)
        others = [rounds for rounds in together if rounds["baseline"] is not None]
        assert len(others) == len(together) - 1
        assert {rounds["baseline"] for rounds in others} == {single["case"]}
        assert all(rounds["baseline_step_s"] == single["rounds"]["step_s"] for rounds in others)
    assert len({r["rounds"]["block"] for r in finished.records(workload=GOOD)}) == N_REPEATS


def test_one_worker_alone_is_on_every_workers_cores_in_turn(finished: Finished) -> None:
    single = {r["repeat"]: r["rounds"]["first_worker"] for r in finished.of("single")}
    assert single == {repeat: repeat % 2 for repeat in range(N_REPEATS)}
    assert {r["rounds"]["first_worker"] for r in finished.of("all-reduce")} == {0}


def test_the_run_folder_holds_what_the_contract_says(finished: Finished) -> None:
    for name in ("experiment.yaml", "environment.json", "results.jsonl", "report.html"):
        assert (finished.out / name).stat().st_size > 0
    run = load_run(finished.out)
    for record in run.records:
        folder = run.repeat_dir(record)
        if record.status == "failed":
            stage = record.error.stage if record.error else ""
            assert (folder / "plan.json").exists() is (stage != "capture")
            assert "Traceback" in (folder / "failure.log").read_text()
            continue
        names = {"plan.json", "steps.parquet", "trace.json", "checkpoint"}
        names |= {"profile.json"} if record.strategy == "none" else set()
        names |= {f"worker-{k}.log" for k in range(record.workers)}
        assert {path.name for path in folder.iterdir()} == names
        steps = run.steps(record)
        assert steps is not None
        assert len(steps.step) == record.workers * N_ALL_STEPS
        assert (~steps.warmup).sum() == record.workers * N_STEPS
        assert set(steps.window) == set(range(-1, N_ROUNDS))


def test_a_step_after_all_that_is_measured_is_traced(finished: Finished) -> None:
    for record in finished.records(status="ok"):
        step = record["traced_step"]
        assert len(step["step_s"]) == record["workers"]
        moved = [seconds > 0 for seconds in step["receiving_s"]]
        assert any(moved) is (record["strategy"] in ("ps", "all-reduce"))
        trace = json.loads(
            (finished.out / "cases" / record["case"] / str(record["repeat"]) / "trace.json").read_text()
        )
        workers = {event["pid"] for event in trace["traceEvents"] if event["ph"] == "X"}
        assert workers == set(range(record["workers"]))


def test_every_repeat_leaves_a_checkpoint_that_a_strategy_can_go_on_with(finished: Finished) -> None:
    n_steps = N_ALL_STEPS
    for record in finished.records(status="ok"):
        path = f"cases/{record['case']}/{record['repeat']}/checkpoint"
        saved = {"saved": path, "saved_step": n_steps, "restored": None, "restored_step": None}
        assert record["checkpoint"] == saved
        assert (finished.out / path / "checkpoint").is_file()
    assert {record["checkpoint"] for record in finished.records(status="failed")} == {None}
    record = finished.of("all-reduce")[0]
    path = finished.out / record["checkpoint"]["saved"]
    verify = f"verify {GOOD}:units=16 --strategy ps --steps 2 --json --restore {path}"
    with watched(verify.split(), finished.out) as run:
        status, output, errors = run.finish()
    assert status == 0, errors
    answer = json.loads(output)
    assert (answer["equivalent"], answer["notes"]) == (True, [])
    assert answer["restored"] == {"path": str(path), "step": n_steps}


def test_the_report_and_the_output_name_what_happened(finished: Finished) -> None:
    n_ok, n_failed = len(STRATEGIES) * N_REPEATS, N_FAILED_CASES * N_REPEATS
    report = (finished.out / "report.html").read_text()
    assert all(name in report for name in (GOOD, "mine.py:Raises", "all-reduce"))
    assert re.search(
        rf"reachable from other hosts.{{1,60}}\b{'yes' if REFUSAL else 'no'}\b", report, re.DOTALL
    )
    assert f"repeats: {n_ok} ok, {n_failed} failed" in finished.output
    assert "report: runs/out/report.html" in finished.output
    lines = finished.errors.splitlines()
    # Cases without a result have a line for all of their repeats.
    assert sum(line.startswith("[") for line in lines) == N_FAILED_CASES
    stages = ("provision", "capture", "check", "measure", "report")
    assert all(any(f" {stage}: " in line for line in lines) for stage in stages)
    assert not [line for line in lines if "Traceback" in line or "tensorflow/" in line or "chatter" in line]


def test_nothing_is_left(finished: Finished) -> None:
    assert finished.leftovers == []


def test_the_driver_never_loads_tensorflow(finished: Finished) -> None:
    assert "_raylet.so" in finished.mapped, "the instrument works"
    assert not [name for name in finished.mapped if "tensorflow" in name]


def series(page: str, metric: str) -> set[frozenset[str]]:
    """The labels of each series of a metric; no value in them has a comma."""
    lines = [line for line in page.splitlines() if line.startswith(f"{metric}{{")]
    return {frozenset(line.partition("{")[2].partition("}")[0].split(",")) for line in lines}


def test_metrics_are_served_while_the_run_goes_on(finished: Finished) -> None:
    ended, under_way = (series(finished.metrics, f"stratbench_{name}_total") for name in ("repeats", "steps"))
    usable = {labels - {'status="ok"'} for labels in ended if 'status="ok"' in labels}
    assert usable
    assert all('experiment="quickstart"' in labels for labels in usable)
    info = series(finished.metrics, "stratbench_run_info")
    assert usable <= {
        frozenset(label for label in labels if label.startswith(("case=", "experiment="))) for labels in info
    }
    # What windows tell while a repeat goes on, and what its record tells, are of one series.
    assert usable <= under_way


def test_a_folder_in_use_is_refused(finished: Finished) -> None:
    assert finished.in_use.endswith("is in use by another run; wait for it or name another folder")


def test_the_home_of_the_user_is_left_alone(finished: Finished) -> None:
    assert not Path("/nonexistent").exists()


def test_workers_that_cannot_be_had_are_told_of_before_others_are_measured(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sweep = ["--set", "cluster.device=[cpu,tpu]"]
    with watched(["run", "quickstart", *sweep, "--out", str(out)], tmp_path) as run:
        status, output, errors = run.finish()
        assert run.leftovers() == []
    *estimate, line = errors.splitlines()
    assert len(estimate) == 1
    assert (status, output) == (3, "")
    assert line.startswith("stratbench: cluster.device: device tpu needs TPU chips, got ")
    assert records(out) == []
