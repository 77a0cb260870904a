"""TensorFlow's TPUStrategy where there are no TPUs: its step on CPUs in their place, and its traced graph."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import probe_jobs
import pytest
import tpu_jobs
from rival_processes import make_ready, started

from harness.errors import CaseError
from harness.experiment.references import parse_strategy, parse_workload
from harness.measure.timeouts import USUAL
from harness.provision.protocols import ProcessSet
from harness.requests import Target
from harness.run.case.check import check
from harness.study.target import TargetStudy, study
from harness.worker.jobs.baselines.synchronous import open_baseline, stop_distribution
from harness.worker.process.job import Job

pytestmark = pytest.mark.tensorflow

N_REPLICAS = 4


@pytest.fixture(scope="module")
def opened() -> Iterator[TargetStudy]:
    target = Target(
        workload=parse_workload("digits-mlp:units=16", field="workload"),
        strategy=parse_strategy("tf-tpu", field="strategy"),
        workers=1,
        replicas=N_REPLICAS,
        device="tpu",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        with study(target, n_batches=2, timeouts=USUAL) as opened:
            yield opened


@pytest.mark.parametrize("break_it", [None, probe_jobs.halve_shares])
def test_the_step_computes_what_the_reference_does_with_cpus_in_the_place_of_tpus(
    opened: TargetStudy, break_it: Job[None] | None
) -> None:
    with started(
        opened.plan,
        opened.folder,
        break_it,
        partial(tpu_jobs.start_on_cpus, plan=opened.plan.model_dump_json()),
    ) as processes:
        make_ready(processes, opened.case, opened.capture, opened.plan, opened.batches)
        checked = check(processes, opened.reference(2))
        assert checked.verdict.equivalent is (break_it is None)
        assert shut_down(processes) == 0
        for _ in range(2):
            processes.call(stop_distribution, [()], timeout_s=60)
        assert shut_down(processes) == 1


def test_tensorflows_own_strategy_traces_one_sum_over_replicas_for_each_gradient(opened: TargetStudy) -> None:
    with started(
        opened.plan,
        opened.folder,
        server=partial(tpu_jobs.start_described, plan=opened.plan.model_dump_json()),
    ) as processes:
        args = (str(opened.capture.folder), opened.plan.model_dump_json(), 0)
        opens = partial(open_baseline, case=opened.case, seed=0)
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


def test_a_host_without_tpus_fails_with_what_it_takes(opened: TargetStudy) -> None:
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
