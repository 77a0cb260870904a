"""A real workload on real worker processes: bytes as predicted, and what goes wrong while it trains."""

import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import probe_jobs
import pytest

from harness.cluster import ClusterShape
from harness.errors import CaseError
from harness.measure.collector import Collector, Measurement
from harness.provision import local
from harness.provision.failures import WorkerFailure
from harness.provision.protocols import Cluster, ProcessSet
from harness.run.process_setup import join_ring, serving_processes
from harness.run.worker_figures import variable_bytes
from harness.worker.jobs import rendezvous
from harness.worker.jobs import training as jobs
from strategies.plan.schema import Plan
from strategies.planner import n_waiting, payload_matrix
from strategies.registry import STRATEGIES, make_plan
from strategies.topology import Topology

pytestmark = [pytest.mark.ray, pytest.mark.tensorflow]

N_WORKERS = 2
Param: TypeAlias = str | int | bool
KERNELS, N_BIASES = [(64, 1200), *[(1200, 1200)] * 3, (1200, 10)], 4 * 1200 + 10
STATED = {
    "fp16": 1 / 2,
    "bf16-ef": 1 / 2,
    "topk": 0.01 * (4 + 4) / 4,  # values and positions
    "powersgd": (4 * sum(map(sum, KERNELS)) + N_BIASES) / (sum(map(math.prod, KERNELS)) + N_BIASES),
    "signsgd-ef": 1 / 32,
    "qsgd": 1 / 4,
}
"""Compressor → bytes of encoded gradients by those of the gradients of wide-mlp."""
MEASURED: list[tuple[str, dict[str, Param]]] = [
    *(
        (s.name, {})
        for s in STRATEGIES
        if s.strategy_class == "exact" and s.runner == "graph" and not s.single
    ),
    ("all-reduce", {"transport": "ring"}),
    ("sharded-update", {"transport": "ring"}),
    ("ps", {"local_proxy_variable": True}),
]


class Capture:
    """A captured workload, its batch size and some batches."""

    def __init__(self, cluster: Cluster, folder: Path, workload: str = "wide-mlp") -> None:
        self.folder = folder
        with cluster.open_session(range(1), [folder.parent / "capture.log"]) as processes:
            self.batch_size, self.batches, self.summary = processes.call_one(
                0, probe_jobs.capture_workload, (workload, str(folder), 2), timeout_s=120
            )

    def plan(self, strategy: str, **params: Param) -> Plan:
        topology = Topology(replicas_per_task=(1,) * N_WORKERS, batch_size=self.batch_size)
        return make_plan(strategy, params, self.summary, topology)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        shape = ClusterShape(workers=N_WORKERS)
        with local.start(shape, "test", tmp_path_factory.mktemp("logs")) as started:
            yield started


@pytest.fixture(scope="module")
def captured(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return Capture(cluster, tmp_path_factory.mktemp("run") / "capture")


@pytest.fixture(scope="module")
def looked_up(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """A workload with a sparse gradient."""
    return Capture(cluster, tmp_path_factory.mktemp("run") / "capture", "word-lm")


@contextmanager
def training(cluster: Cluster, captured: Capture, plan: Plan, logs: Path) -> Iterator[ProcessSet]:
    paths = [logs / f"worker-{k}.log" for k in range(N_WORKERS)]
    server = partial(rendezvous.start_server, n_waiting=n_waiting(plan))
    with serving_processes(cluster, paths, n_devices=[1] * N_WORKERS, server=server) as processes:
        if n_waiting(plan):
            join_ring(processes)
        args = [(str(captured.folder), plan, task) for task in range(N_WORKERS)]
        opened = processes.call(jobs.open_program, args, timeout_s=120)
        for job in (jobs.load, jobs.setup):
            processes.call(job, [()] * N_WORKERS, timeout_s=120)
        shares = [[[part[o.start : o.stop] for part in b] for b in captured.batches] for o in opened]
        processes.call(jobs.stage, [(share,) for share in shares], timeout_s=120)
        yield processes


def measured_by(processes: ProcessSet, batch_size: int, *, n_steps: int, warmup: int) -> Measurement:
    collector = Collector(processes, batch_size=batch_size)
    collector.warm_up(warmup)
    for _ in range(2):
        collector.window(n_steps, n_lead=1)
    return collector.measurement()


@pytest.mark.parametrize(("strategy", "params"), MEASURED, ids=str)
def test_measured_bytes_are_those_predicted(
    cluster: Cluster, captured: Capture, tmp_path: Path, strategy: str, params: dict[str, Param]
) -> None:
    """Those sent in a step, and those of variables in memory."""
    plan = captured.plan(strategy, **params)
    with training(cluster, captured, plan, tmp_path) as processes:
        measured = measured_by(processes, captured.batch_size, n_steps=4, warmup=2)
        n_bytes = variable_bytes(processes)
    assert measured.tcp is not None
    assert measured.tcp.bytes_per_step == pytest.approx(plan.payload_bytes_per_step, rel=0.03)
    for row, predicted in zip(measured.tcp.matrix, payload_matrix(plan, captured.summary).sent, strict=True):
        assert row == pytest.approx(predicted, rel=0.03)
    assert measured.loss[-1] < measured.loss[0]
    assert all(peak is not None and peak > 100e6 for peak in measured.peak_rss_bytes)
    # Of replicas, the plan tells what the one owns that owns the most.
    assert n_bytes == pytest.approx([plan.worker_bytes + served for served in plan.server_bytes], rel=0.03)


@pytest.mark.parametrize("compressor", STATED)
@pytest.mark.parametrize("strategy", ["ps-load-balancing", "all-reduce"])
def test_compressed_bytes_are_those_predicted(
    cluster: Cluster, captured: Capture, tmp_path: Path, strategy: str, compressor: str
) -> None:
    plan, whole = captured.plan(strategy, compressor=compressor), captured.plan(strategy)
    # What is pulled from servers travels as it is.
    left = STATED[compressor] if strategy == "all-reduce" else (1 + STATED[compressor]) / 2
    with training(cluster, captured, plan, tmp_path) as processes:
        measured = measured_by(processes, captured.batch_size, n_steps=4, warmup=2)
    assert measured.tcp is not None
    assert measured.tcp.bytes_per_step == pytest.approx(plan.payload_bytes_per_step, rel=0.03)
    assert measured.tcp.bytes_per_step == pytest.approx(left * whole.payload_bytes_per_step, rel=0.06)


@pytest.mark.parametrize(
    ("strategy", "params"),
    [
        ("all-reduce", {}),
        ("all-reduce", {"merge_rows": True}),
        ("all-reduce", {"compressor": "fp16"}),
        ("hierarchical-all-reduce", {"merge_rows": True}),
        ("sharded-update", {}),
        ("fully-sharded", {"merge_rows": True}),
    ],
    ids=str,
)
def test_rows_are_as_many_bytes_as_words_or_as_those_that_differ(
    cluster: Cluster, looked_up: Capture, tmp_path: Path, strategy: str, params: dict[str, Param]
) -> None:
    """The plan counts every word of a worker's examples as another one, and ids of 8 bytes.

    Words that come again are sent again, unless rows are merged.
    """
    plan = looked_up.plan(strategy, **params)
    (table,) = (node for node in plan.nodes if node.sparse)
    assert table.transport == "tcp"
    row_bytes = 4 * table.shape[1]
    half = looked_up.batch_size // N_WORKERS
    spared = []
    for task in range(N_WORKERS):
        words = [batch[0][task * half : (task + 1) * half] for batch in looked_up.batches]
        merged = table.merges_rows
        most = min(table.shape[0], words[0].size) if merged else words[0].size
        n_sent = np.mean([len(np.unique(word)) if merged else word.size for word in words])
        spared.append(most * (row_bytes + 8) - n_sent * (row_bytes + 4))
    with training(cluster, looked_up, plan, tmp_path) as processes:
        measured = measured_by(processes, looked_up.batch_size, n_steps=4, warmup=2)
    assert measured.tcp is not None
    most_sent = payload_matrix(plan, looked_up.summary).sent
    for task, (row, most) in enumerate(zip(measured.tcp.matrix, most_sent, strict=True)):
        assert sum(row) == pytest.approx(sum(most) - spared[task], rel=0.03)
    assert measured.loss[-1] < measured.loss[0]


def test_without_communication_no_byte_is_counted(
    cluster: Cluster, captured: Capture, tmp_path: Path
) -> None:
    with training(cluster, captured, captured.plan("none"), tmp_path) as processes:
        measured = measured_by(processes, captured.batch_size, n_steps=4, warmup=1)
    assert measured.tcp is not None
    assert measured.tcp.bytes_per_step == 0


def test_a_worker_that_dies_between_steps_ends_the_case(
    cluster: Cluster, captured: Capture, tmp_path: Path
) -> None:
    with training(cluster, captured, captured.plan("all-reduce"), tmp_path) as processes:
        processes.call_one(1, probe_jobs.die_in_step, (), timeout_s=120)
        with pytest.raises(
            WorkerFailure, match=r"worker 1: its process was killed by SIGKILL .* into run_steps"
        ):
            measured_by(processes, captured.batch_size, n_steps=50, warmup=1)


def test_a_loss_that_is_not_finite_names_worker_and_step(
    cluster: Cluster, captured: Capture, tmp_path: Path
) -> None:
    with training(cluster, captured, captured.plan("none"), tmp_path) as processes:
        processes.call_one(1, probe_jobs.lose_in_step, (3,), timeout_s=120)
        with pytest.raises(CaseError, match=r"worker 1, step 3: the loss is not finite: nan"):
            measured_by(processes, captured.batch_size, n_steps=5, warmup=1)


def test_a_taken_port_is_told_as_such(cluster: Cluster, tmp_path: Path) -> None:
    with cluster.open_session(range(1), [tmp_path / "worker-0.log"]) as processes, socket.socket() as blocker:
        processes.call_one(0, rendezvous.reserve_ports, (1, "127.0.0.1"), timeout_s=120)
        blocker.bind(("0.0.0.0", 0))
        blocker.listen()
        address = f"127.0.0.1:{blocker.getsockname()[1]}"
        with pytest.raises(CaseError, match=f"worker 0: another program took its port {address}") as caught:
            processes.call_one(0, rendezvous.start_server, (0, [address], 1), timeout_s=120)
    assert caught.value.kind == "port-in-use"
