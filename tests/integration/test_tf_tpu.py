"""Steps for TPUs, without one: run on CPUs in their place, and as TensorFlow traces them.

That is TensorFlow's TPUStrategy as a rival, and as what gives devices to replicas that compile our graphs.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import probe_jobs
import pytest
import tpu_jobs
from rival_processes import make_ready, started

from harness.errors import CaseError
from harness.experiment.references import parse_strategy, parse_workload
from harness.measure.timeouts import USUAL
from harness.planned_target import PlannedTarget, capture_and_plan
from harness.provision.protocols import ProcessSet
from harness.requests import Target
from harness.verification.checks import first_steps
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


RIVAL, OWN = "tf-tpu", "tpu-replicate:steps_per_loop=3"


@pytest.fixture(scope="module", params=[RIVAL, OWN])
def opened(request: pytest.FixtureRequest) -> Iterator[PlannedTarget]:
    with opened_study(request.param) as study_of_strategy:
        yield study_of_strategy


@contextmanager
def opened_study(strategy: str, workload: str = "digits-mlp:units=16") -> Iterator[PlannedTarget]:
    target = Target(
        workload=parse_workload(workload, field="workload"),
        strategy=parse_strategy(strategy, field="strategy"),
        workers=1,
        replicas=N_REPLICAS,
        device="tpu",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        with capture_and_plan(target, n_batches=4, timeouts=USUAL) as opened:
            yield opened


def on_cpus(opened: PlannedTarget, break_it: Job[None] | None) -> AbstractContextManager[ProcessSet]:
    server = partial(tpu_jobs.start_on_cpus, plan=opened.plan)
    return started(opened.plan, opened.folder, break_it, server)


def described(opened: PlannedTarget) -> AbstractContextManager[ProcessSet]:
    server = partial(tpu_jobs.start_described, plan=opened.plan)
    return started(opened.plan, opened.folder, tpu_jobs.only_trace, server)


@pytest.mark.parametrize("broken", [False, True])
def test_the_step_computes_what_the_reference_does_with_cpus_in_the_place_of_tpus(
    opened: PlannedTarget, broken: bool
) -> None:
    of_rival = opened.plan.strategy == RIVAL
    breaking = probe_jobs.halve_shares if of_rival else tpu_jobs.drop_sums_of_replicas
    with on_cpus(opened, breaking if broken else None) as processes:
        make_ready(processes, opened.case, opened.capture, opened.plan, opened.batches)
        outcome = first_steps(processes, 4, steps_per_loop=opened.plan.execution.steps_per_loop)
        assert opened.reference(4).judge(outcome).equivalent is not broken
        assert shut_down(processes) == 0
        for _ in range(2):
            processes.call(stop_distribution, [()], timeout_s=60)
        assert shut_down(processes) == 1


@pytest.mark.parametrize("strategy", [RIVAL, OWN, "tpu-replicate:device_loop=true"])
def test_tensorflow_traces_for_tpus_one_sum_over_replicas_for_each_gradient(strategy: str) -> None:
    with opened_study(strategy) as opened, described(opened) as processes:
        args = (str(opened.capture.folder), opened.plan, 0)
        own = opened.plan.strategy != RIVAL
        by_replicas = partial(open_replicas, batches=str(opened.batches))
        opens = by_replicas if own else partial(open_baseline, case=opened.case, seed=0)
        (program,) = processes.call(opens, [args], timeout_s=120)
        ((operations, n_copies, of_float64),) = processes.call(tpu_jobs.traced, [()], timeout_s=120)
        (seen,) = processes.call(tpu_jobs.n_seen_in_step, [()], timeout_s=120)
    trained = [node for node in opened.plan.nodes if node.synchronizer == "cross-replica-sum"]
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


def test_a_host_without_tpus_fails_with_what_it_takes(opened: PlannedTarget) -> None:
    with (
        pytest.raises(CaseError, match=r"TPUs not found.*TARGET=tpu") as raised,
        started(opened.plan, opened.folder),
    ):
        pass
    assert (raised.value.kind, raised.value.stage) == ("no-device", "provision")
    assert "\n" not in raised.value.message


def shut_down(processes: ProcessSet) -> int:
    (times,) = processes.call(tpu_jobs.times_shut_down, [()], timeout_s=60)
    return times
