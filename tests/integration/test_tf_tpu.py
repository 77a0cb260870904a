"""Steps for TPUs, without one: run on CPUs in their place, and as TensorFlow traces them.

That is TensorFlow's TPUStrategy as a rival, and as what gives devices to replicas that compile our graphs.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import probe_jobs
import pytest
import tpu_jobs
from rival_processes import Study, captures_in, started

from harness.cluster import ClusterShape
from harness.errors import CaseError
from harness.provision.protocols import ProcessSet
from harness.verification.captures import Captures
from harness.worker.jobs.distributed import compiled_replicas
from harness.worker.jobs.distributed.compiled_replicas import open_replicas
from harness.worker.jobs.distributed.synchronous import open_baseline
from harness.worker.jobs.distributed.workload import stop_distribution
from harness.worker.process.job import Job
from strategies.errors import UnsupportedError
from strategies.ir.graph import DType, Graph, Shape
from strategies.ir.train_graph import BatchInput, TrainGraph

pytestmark = pytest.mark.tensorflow

N_REPLICAS = 4
N_STEPS = 4
RIVAL, OWN = "tf-tpu", "tpu-replicate:steps_per_loop=3"


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Captures]:
    folder = tmp_path_factory.mktemp("captures")
    with captures_in(folder, n_batches=N_STEPS, n_least=N_STEPS) as captures:
        yield captures


def study_of(captures: Captures, strategy: str) -> Study:
    shape = ClusterShape(workers=1, replicas_per_worker=N_REPLICAS, device="tpu")
    return Study.of(captures, "digits-mlp:units=16", strategy, shape)


def on_cpus(study: Study, folder: Path, break_it: Job[None] | None) -> AbstractContextManager[ProcessSet]:
    server = partial(tpu_jobs.start_on_cpus, plan=study.plan)
    return started(study.plan, folder, break_it, server)


def described(study: Study, folder: Path) -> AbstractContextManager[ProcessSet]:
    server = partial(tpu_jobs.start_described, plan=study.plan)
    return started(study.plan, folder, tpu_jobs.only_trace, server)


@pytest.mark.parametrize("strategy", [RIVAL, OWN])
@pytest.mark.parametrize("broken", [False, True])
def test_the_step_computes_what_the_reference_does_with_cpus_in_the_place_of_tpus(
    captures: Captures, strategy: str, broken: bool, tmp_path: Path
) -> None:
    study = study_of(captures, strategy)
    breaking = probe_jobs.halve_shares if strategy == RIVAL else tpu_jobs.drop_sums_of_replicas
    with on_cpus(study, tmp_path, breaking if broken else None) as processes:
        assert study.verdict(processes, N_STEPS).equivalent is not broken
        assert shut_down(processes) == 0
        for _ in range(2):
            processes.call(stop_distribution, [()], timeout_s=60)
        assert shut_down(processes) == 1


@pytest.mark.parametrize("strategy", [RIVAL, OWN, "tpu-replicate:device_loop=true"])
def test_tensorflow_traces_for_tpus_one_sum_over_replicas_for_each_gradient(
    captures: Captures, strategy: str, tmp_path: Path
) -> None:
    study = study_of(captures, strategy)
    plan = study.plan
    with described(study, tmp_path) as processes:
        args = (str(study.capture.folder), plan, 0)
        by_replicas = partial(open_replicas, batches=str(study.batches))
        opens = partial(open_baseline, case=study.case, seed=0) if strategy == RIVAL else by_replicas
        (program,) = processes.call(opens, [args], timeout_s=120)
        ((operations, n_copies, of_float64),) = processes.call(tpu_jobs.traced, [()], timeout_s=120)
        (seen,) = processes.call(tpu_jobs.n_seen_in_step, [()], timeout_s=120)
    trained = [node for node in plan.nodes if node.synchronizer == "cross-replica-sum"]
    assert operations["CrossReplicaSum"] == len(trained)
    assert n_copies == [N_REPLICAS]
    assert of_float64 == []
    # A step that heard of more would divide its loss once more.
    assert seen == [1, 1]
    assert program.notes[0] == (
        "TPU system: 4 devices in a mesh 2x2x1x1 at (0,0,0,0), (0,1,0,0), (1,0,0,0), (1,1,0,0), 4 of them "
        "with a replica; matrices of float32 are multiplied in float32"
    )


def test_examples_of_unknown_shape_are_refused_before_anything_is_made() -> None:
    ragged = BatchInput(path="1/text", node="text", dtype=DType("float"), shape=Shape((4, -1)))
    step = TrainGraph(
        graph=Graph(nodes=()), variables=(), boundaries=(), regions=(), batch=(ragged,), losses=()
    )
    with pytest.raises(UnsupportedError, match=r"known shape, got .* of '1/text'; pad them in dataset"):
        compiled_replicas._require_known_shapes(step)


@pytest.mark.parametrize("strategy", [RIVAL, OWN])
def test_a_host_without_tpus_fails_with_what_it_takes(
    captures: Captures, strategy: str, tmp_path: Path
) -> None:
    with (
        pytest.raises(CaseError, match=r"TPUs not found.*TARGET=tpu") as raised,
        started(study_of(captures, strategy).plan, tmp_path),
    ):
        pass
    assert (raised.value.kind, raised.value.stage) == ("no-device", "provision")
    assert "\n" not in raised.value.message


def shut_down(processes: ProcessSet) -> int:
    (times,) = processes.call(tpu_jobs.times_shut_down, [()], timeout_s=60)
    return times
