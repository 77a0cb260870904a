"""Fields that a record takes from other records, and those of its own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from git_repository import Repository

from harness.errors import CaseError
from harness.experiment.cases import Case, expand
from harness.experiment.load import resolve
from harness.experiment.model import Experiment, InputRule
from harness.experiment.schedule import Slot
from harness.measure.collector import Measurement
from harness.measure.machine_use import Consumption
from harness.provision import accelerators
from harness.provision.protocols import ClusterFacts
from harness.records import conditions
from harness.records.conditions import Machine, ModelSize, Placement
from harness.records.costs import Energy, MeasuredLink, PassCost
from harness.records.outcome import Equivalence, SavedCheckpoint, Stability, StepSeconds
from harness.records.record import Record, from_json, to_json
from harness.records.steps_file import Steps
from harness.run.open_case import CaseRun
from harness.run.recorder import RunRecorder
from harness.verification.captures import Capture, Restored
from harness.verification.verification import CaptureVerdict
from harness.verification.worker.capture import CapturedWorkload
from harness.worker.counters.network import TcpTraffic
from harness.worker.jobs.training import Opened
from strategies.plan.schema import Plan, StepSummary, StrategyClass, VariableSummary
from strategies.user_errors import SHOWS_TRACEBACK

SPEC: Experiment = resolve(
    {
        "name": "test",
        "workloads": ["wide-mlp"],
        "strategies": ["none", "ps"],
        "cluster": {"workers": 2, "cores_per_worker": [1, 2]},
    }
)
NONE, PS, NONE_ON_TWO_CORES, PS_ON_TWO_CORES = sorted(
    expand(SPEC), key=lambda case: (case.shape.cores_per_worker, case.strategy.name)
)
CAPTURE = Capture(
    folder=Path(),
    facts=CapturedWorkload(
        summary=StepSummary(workload="wide-mlp", variables=(), batch=(), n_nodes=1),
        batch_size=16,
        flops_per_example=None,
        replica_batch=None,
    ),
)
FACTS = ClusterFacts(
    notes=("of the workers",), pinned=True, exposed=False, provision_s=3.0, image_digest="sha256:1"
)


@pytest.fixture
def recorder() -> RunRecorder:
    return RunRecorder(spec=SPEC, run="run")


def plan(case: Case) -> Plan:
    return Plan(
        workload="wide-mlp",
        strategy=case.strategy.name,
        strategy_params=dict(case.chosen.params),
        strategy_class="exact",
        replicas_per_task=(1, 1),
        batch_size=16,
        device="cpu",
        nodes=(),
        payload_bytes_per_step=0,
        server_bytes=(0, 0),
        worker_bytes=0,
        notes=("of the plan",),
    )


def measurement(
    p50_s: float, *, settled: bool = True, mean_s: float | None = None, tcp: TcpTraffic | None = None
) -> Measurement:
    nothing = np.zeros(0)
    return Measurement(
        examples_per_s=1.0,
        step_s=StepSeconds(n=1, mean=mean_s, p50=p50_s),
        warmup_steps=50,
        n_steps=1,
        settled=settled,
        tcp=tcp,
        interface_bytes_per_step=2100.0,
        hosts=(0, 0),
        peak_rss_bytes=(None, None),
        loss=(1.0,),
        steps=Steps(
            worker=nothing,
            step=nothing,
            start_s=nothing,
            end_s=nothing,
            loss=nothing,
            warmup=nothing,
            window=nothing,
        ),
        stability=Stability(),
        consumption=Consumption(cpu_s_per_step=(0.1, 0.3), energy=Energy(package_j_per_step=2.0)),
    )


def case_run(measured: Measurement) -> CaseRun:
    opened = Opened(transform_s=0.1, import_s=0.1, nodes_before=1, nodes_after=1, start=0, stop=8)
    return CaseRun(measurement=measured, opened=(opened, opened), equivalence=None)


def ended(
    recorder: RunRecorder,
    case: Case,
    measured: Measurement,
    *,
    repeat: int = 0,
    verdict: Equivalence | None = None,
    capture: Capture = CAPTURE,
    saved_step: int | None = None,
    links: tuple[MeasuredLink, ...] | None = None,
) -> Record:
    run = replace(case_run(measured), equivalence=verdict, saved_step=saved_step, links=links)
    return recorder.ended(
        Slot(order=0, block=0, repeat=repeat, case=case), FACTS, capture, plan(case), run, 1.0
    )


def test_exposed_communication_is_above_the_control_of_the_same_repeat_and_shape(
    recorder: RunRecorder,
) -> None:
    assert ended(recorder, PS, measurement(0.5)).exposed_comm_s is None
    ended(recorder, NONE, measurement(0.2))
    ended(recorder, NONE_ON_TWO_CORES, measurement(0.1))
    ended(recorder, NONE, measurement(0.4), repeat=1)
    assert ended(recorder, PS, measurement(0.5)).exposed_comm_s == pytest.approx(0.3)
    assert ended(recorder, PS_ON_TWO_CORES, measurement(0.5)).exposed_comm_s == pytest.approx(0.4)
    assert ended(recorder, PS, measurement(0.5), repeat=1).exposed_comm_s == pytest.approx(0.1)


def test_injected_delays_are_no_communication(recorder: RunRecorder) -> None:
    document = {
        "name": "x",
        "workloads": ["wide-mlp"],
        "strategies": ["ps"],
        "faults": [{"worker": 1, "kind": "slow", "delay_ms": 20}],
    }
    (slow,) = expand(resolve(document))
    ended(recorder, NONE, measurement(0.2))
    assert ended(recorder, slow, measurement(0.5)).exposed_comm_s is None


def test_a_record_names_the_unit_of_its_timing(recorder: RunRecorder) -> None:
    document = {"name": "x", "workloads": ["wide-mlp"], "strategies": ["local-sgd", "ps:sync=false", "ps"]}
    cases = expand(resolve(document))
    units = [ended(recorder, case, measurement(0.5)).timed_unit for case in cases]
    assert units == ["period", "window", "step"]


def test_a_record_has_the_size_of_its_model(recorder: RunRecorder) -> None:
    summary = StepSummary(
        workload="wide-mlp",
        variables=tuple(
            VariableSummary(name=name, kind=kind, dtype="float32", shape=(5,), bytes=20)
            for name, kind in (("w", "trainable"), ("w/momentum", "slot"))
        ),
        batch=(),
        n_nodes=1,
    )
    capture = replace(CAPTURE, facts=replace(CAPTURE.facts, summary=summary, flops_per_example=3.0))
    record = from_json(to_json(ended(recorder, PS, measurement(0.5), capture=capture)))
    assert record.model == ModelSize(n_variables=2, variable_bytes=40, flops_per_example=3.0)


def test_a_record_names_the_repository_of_the_workloads_file(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "models")
    sha = repository.commit("first", {"net.py": ""})
    spec = resolve(
        {"name": "test", "workloads": [f"{repository.root / 'net.py'}:net"], "strategies": ["single"]}
    )
    slot = Slot(order=0, block=0, repeat=0, case=expand(spec)[0])
    recorder = RunRecorder(spec=spec, run="run")
    provenance = from_json(to_json(recorder.skipped(slot, "x", "x"))).provenance
    assert provenance is not None
    assert provenance.workload == conditions.Repository(name="models", git_sha=sha, git_dirty=False)
    # Beside the harness's own, which this is the checkout of or an installed package.
    assert provenance.git_sha != sha
    own = RunRecorder(spec=SPEC, run="run").skipped(Slot(order=0, block=0, repeat=0, case=PS), "x", "x")
    assert own.provenance is not None
    assert own.provenance.workload is None


def test_a_record_has_the_passes_of_the_first_worker(recorder: RunRecorder) -> None:
    passes = (PassCost(name="replicate", seconds=0.1, nodes=7), PassCost(name="place", seconds=0.2, nodes=9))
    run = case_run(measurement(0.5))
    first, second = run.opened
    run = replace(run, opened=(replace(first, passes=passes), second))
    record = recorder.ended(Slot(order=0, block=0, repeat=0, case=PS), FACTS, CAPTURE, plan(PS), run, 1.0)
    assert from_json(to_json(record)).passes == passes
    assert ended(recorder, NONE, measurement(0.5)).passes is None


def test_the_control_makes_updates_as_the_case_does(recorder: RunRecorder) -> None:
    as_captured = replace(NONE, strategy=replace(NONE.strategy, params={"fused_update": False}))
    assert ended(recorder, as_captured, measurement(0.2)).fused_update is False
    assert ended(recorder, PS, measurement(0.5)).exposed_comm_s is None
    assert ended(recorder, NONE, measurement(0.3)).fused_update is True
    assert ended(recorder, PS, measurement(0.5)).exposed_comm_s == pytest.approx(0.2)


def test_controls_and_verdicts_of_the_run_that_goes_on_are_known(recorder: RunRecorder) -> None:
    verdict = Equivalence(checked=True, equivalent=True, checked_in_repeat=0)
    before = (ended(recorder, NONE, measurement(0.2)), ended(recorder, PS, measurement(0.5), verdict=verdict))
    resumed = RunRecorder(spec=SPEC, run="run")
    resumed.take_up(tuple(from_json(to_json(record)) for record in before))
    assert resumed.verdict(PS) == verdict
    assert resumed.verdict(NONE) is None
    record = ended(resumed, PS, measurement(0.5))
    assert record.exposed_comm_s == pytest.approx(0.3)
    assert record.equivalence == verdict


@pytest.mark.parametrize("settled", [True, False])
def test_a_record_notes_what_lessens_trust_in_it(recorder: RunRecorder, settled: bool) -> None:
    record = ended(recorder, PS, measurement(0.5, settled=settled))
    expected = ["of the workers", "of the plan"]
    if not settled:
        expected.append("warm-up did not settle within 50 steps: step times still changed")
    assert list(record.notes) == expected
    assert from_json(to_json(record)).notes == record.notes


def test_a_record_says_what_it_began_with_and_what_it_left(recorder: RunRecorder) -> None:
    assert ended(recorder, PS, measurement(0.5)).checkpoint is None
    saved = ended(recorder, PS, measurement(0.5), repeat=1, saved_step=60).checkpoint
    assert saved == SavedCheckpoint(saved=f"cases/{PS.id}/1/checkpoint", saved_step=60)
    restored = replace(CAPTURE, restored=Restored(path=Path("/there"), step=7))
    record = ended(recorder, PS, measurement(0.5), capture=restored)
    assert record.checkpoint == SavedCheckpoint(restored="/there", restored_step=7)
    assert "began with the checkpoint /there, made after 7 steps" in record.notes
    assert from_json(to_json(record)).checkpoint == record.checkpoint


@pytest.mark.parametrize("kind", ["exact", "bounded", "statistical"])
def test_with_another_step_than_its_author_s_no_case_is_right(
    recorder: RunRecorder, kind: StrategyClass
) -> None:
    record = captured_otherwise(recorder, kind, equal=False)
    assert record.equivalence == Equivalence(
        checked=True, equivalent=False, reason="w is off", captured=False, capture="w is off"
    )
    assert record.equivalence.wrong


def test_a_capture_that_nobody_could_compare_fails_no_case(recorder: RunRecorder) -> None:
    record = captured_otherwise(recorder, "statistical", equal=None)
    assert record.equivalence == Equivalence(checked=False, captured=None, capture="w is off")
    assert not record.equivalence.wrong


def test_a_control_stays_one_whatever_was_captured(recorder: RunRecorder) -> None:
    check = captured_otherwise(recorder, "control", equal=False).equivalence
    assert check is not None
    assert (check.checked, check.captured) == (False, False)


def captured_otherwise(recorder: RunRecorder, kind: StrategyClass, *, equal: bool | None) -> Record:
    """The record of a case whose capture got a verdict."""
    verdict = CaptureVerdict(equal=equal, explanation="w is off")
    capture = replace(CAPTURE, facts=replace(CAPTURE.facts, verdict=verdict))
    of_kind = plan(PS).model_copy(update={"strategy_class": kind})
    slot = Slot(order=0, block=0, repeat=0, case=PS)
    return recorder.ended(slot, FACTS, capture, of_kind, case_run(measurement(0.1)), 1.0)


def test_a_failure_has_no_figures_and_no_verdict(recorder: RunRecorder) -> None:
    error = CaseError("worker-died", "it died", stage="run")
    record = recorder.failed(Slot(order=3, block=0, repeat=1, case=PS), FACTS, error, 1.0, plan(PS))
    assert record.error is not None
    assert (record.status, record.error.type, record.error.stage) == ("failed", "worker-died", "run")
    missing = replace(record, error=None, batch_size=None, wall_s=None)
    assert missing.examples_per_s is missing.step_s is missing.equivalence is missing.loss is None


def test_a_stored_failure_names_no_option_that_its_reader_cannot_use(recorder: RunRecorder) -> None:
    message = f"mine.py:3: ValueError: no; {SHOWS_TRACEBACK}"
    error = CaseError("user-error", message, stage="capture", field="workload")
    record = recorder.failed(Slot(order=0, block=0, repeat=0, case=PS), FACTS, error, 1.0, None)
    assert record.error is not None
    assert record.error.message == "workload: mine.py:3: ValueError: no"


def linked(mbit: float, *, requested_mbit: float = 100.0) -> tuple[MeasuredLink, ...]:
    return (
        MeasuredLink(requested_mbit=requested_mbit, burst_bytes=1, sent_mbit=mbit, received_mbit=mbit),
    ) * 2


@pytest.mark.parametrize(
    ("mean_s", "status"), [(0.50, "ok"), (0.46, "ok"), (0.44, "implausible"), (0.1, "implausible")]
)
def test_bytes_that_the_measured_link_cannot_have_carried_are_not_believed(
    recorder: RunRecorder, mean_s: float, status: str
) -> None:
    # 5 MB one way take 0.5 s at 80 Mbit/s, whatever goes the other way.
    tcp = TcpTraffic(matrix=((0.0, 5e6), (4e6, 0.0)), retransmitted_bytes_per_step=0.0, n_closed=0)
    record = ended(recorder, PS, measurement(0.01, mean_s=mean_s, tcp=tcp), links=linked(80.0))
    assert record.status == status
    assert status == "ok" or "faster than its bytes at the measured rate" in str(record.plausibility)
    assert ended(recorder, PS, measurement(0.01, mean_s=mean_s, tcp=tcp)).status == "ok"


def test_a_record_says_what_links_carried_and_its_control_had_the_same(recorder: RunRecorder) -> None:
    ended(recorder, NONE, measurement(0.2), links=linked(96.0))
    record = ended(recorder, PS, measurement(0.5), links=linked(95.0))
    assert record.link is not None
    assert (record.link.measured_mbit, record.link.workers) == (95.0, linked(95.0))
    assert record.exposed_comm_s == pytest.approx(0.3)
    assert (
        ended(recorder, PS, measurement(0.5), links=linked(9.5, requested_mbit=10.0)).exposed_comm_s is None
    )


def test_what_is_known_of_one_site_reaches_no_record_of_another(recorder: RunRecorder) -> None:
    of_site = ended(recorder, PS, measurement(0.5))
    assert of_site.method is not None
    assert (of_site.method.pinned, of_site.exposed, of_site.provision_s) == (True, False, 3.0)
    assert of_site.provenance is not None
    assert of_site.provenance.image_digest == "sha256:1"
    slot = Slot(order=3, block=0, repeat=1, case=PS)
    failed = recorder.failed(
        slot, ClusterFacts(exposed=True), CaseError("timeout", "late", stage="run"), 1.0, None
    )
    assert (failed.exposed, failed.provision_s) == (True, None)
    never_tried = recorder.skipped(slot, "time-budget", "used up")
    assert never_tried.method is not None
    assert never_tried.provenance is not None
    assert never_tried.provenance.image_digest is None
    assert (never_tried.method.pinned, never_tried.exposed, never_tried.provision_s) == (None, None, None)


@pytest.mark.parametrize(
    ("n_closed", "again", "words"),
    [
        (0, 5.0, None),
        (0, 0.0, None),
        (1, 0.0, "bytes of closed connections are missing"),
        (0, 30.0, "more than 1% TCP retransmits between workers"),
    ],
)
def test_what_the_network_lost_is_noted(
    recorder: RunRecorder, n_closed: int, again: float, words: str | None
) -> None:
    tcp = TcpTraffic(
        matrix=((0.0, 500.0), (500.0, 0.0)), retransmitted_bytes_per_step=again, n_closed=n_closed
    )
    notes = ended(recorder, PS, measurement(0.5, tcp=tcp)).notes[2:]
    assert [words in note for note in notes if words] == ([] if words is None else [True])
    assert len(notes) == (words is not None)


def test_the_peak_of_cores_says_nothing_of_accelerators(recorder: RunRecorder) -> None:
    heavy = replace(CAPTURE, facts=replace(CAPTURE.facts, flops_per_example=1e15))
    assert ended(recorder, PS, measurement(1e-3), capture=heavy).status == "implausible"
    far = replace(FACTS, machine=Machine(cpu_model="far"), clock_hz=1e18)
    slot = Slot(order=0, block=0, repeat=0, case=PS)
    there = recorder.ended(slot, far, heavy, plan(PS), case_run(measurement(1e-3)), 1.0)
    assert (there.status, there.machine) == ("ok", Machine(cpu_model="far"))
    on_gpus = replace(PS, shape=replace(PS.shape, device="gpu"))
    assert ended(recorder, on_gpus, measurement(1e-3), capture=heavy).status == "ok"


def test_a_record_has_what_its_workers_run_on(recorder: RunRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = (conditions.GpuFacts(model="H100"), conditions.GpuFacts(model="H200"))
    measured = replace(measurement(0.5), gpus=gpus, lock="worker-gpu")
    monkeypatch.setattr("harness.run.recorder.lock_hash", lambda name: f"hash of {name}")
    on_gpus = replace(PS, shape=replace(PS.shape, device="gpu"))
    record = from_json(to_json(ended(recorder, on_gpus, measured)))
    assert record.machine is not None
    assert record.provenance is not None
    assert (record.machine.gpus, record.provenance.lock_hash) == (gpus, "hash of worker-gpu")
    assert record.comparison_key != ended(recorder, on_gpus, measurement(0.5)).comparison_key
    # Whoever makes all steps for workers leaves their GPUs unseen, which is said.
    assert record.gpus is not None
    assert record.gpus.why_none
    assert ended(recorder, PS, measurement(0.5)).gpus is None


def test_a_check_that_did_not_end_is_told_and_made_again(recorder: RunRecorder) -> None:
    failed = Equivalence(checked=False, reason="the check did not end")
    assert ended(recorder, PS, measurement(0.5), verdict=failed).equivalence == failed
    assert recorder.verdict(PS) is None
    passed = Equivalence(checked=True, within_bound=True, checked_in_repeat=1)
    assert ended(recorder, PS, measurement(0.5), verdict=passed, repeat=1).equivalence == passed
    assert recorder.verdict(PS) == passed


def test_a_record_says_what_a_step_takes_and_what_its_workers_cost() -> None:
    cluster = SPEC.cluster.model_copy(update={"price_per_hour": {"cpu": 0.9}})
    priced = RunRecorder(spec=SPEC.model_copy(update={"cluster": cluster}), run="run")
    record = ended(priced, PS, measurement(0.5))
    assert record.cpu_s_per_step == (0.1, 0.3)
    assert record.energy == Energy(package_j_per_step=2.0)
    assert record.price_per_hour == 1.8
    # 16 examples in half a second are 32 a second: a million takes 31,250 s.
    assert record.cost_per_million_examples == pytest.approx(1.8 / 3600 * 31_250)
    assert from_json(to_json(record)) == record


@pytest.mark.parametrize(
    ("places", "taken_from", "expected"),
    [
        ((None, None), "staged", None),
        (("device", "device"), "staged", "device"),
        (("device", None), "staged", "device"),
        (("device", "host"), "staged", "mixed"),
        (("device", "device"), "pipeline", "host"),
    ],
)
def test_a_record_says_where_batches_lay(
    places: tuple[Placement | None, ...], taken_from: InputRule, expected: str | None
) -> None:
    measure = SPEC.measure.model_copy(update={"input": taken_from})
    recorder = RunRecorder(spec=SPEC.model_copy(update={"measure": measure}), run="run")
    opened = tuple(Opened(start=0, stop=8, input_placement=place) for place in places)
    run = replace(case_run(measurement(0.5)), opened=opened)
    slot = Slot(order=0, block=0, repeat=0, case=PS)
    method = recorder.ended(slot, FACTS, CAPTURE, plan(PS), run, 1.0).method
    assert method is not None
    assert method.input_placement == expected


def test_a_record_counts_the_replicas_that_share_gpus(
    recorder: RunRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerators, "_gpus_here", lambda: ())
    shared = replace(PS, shape=replace(PS.shape, device="gpu", share_gpus=True))
    record = ended(recorder, shared, measurement(0.5))
    assert record.method is not None
    assert record.method.replicas_on_gpus == (2,)
    assert "2 replicas share 1 GPU: times and GPU traffic differ from those with one GPU per replica" in (
        record.notes
    )
    assert from_json(to_json(record)) == record
    own = ended(recorder, PS, measurement(0.5))
    assert own.method is not None
    assert own.method.replicas_on_gpus == ()
    assert not any("share" in note for note in own.notes)


def test_without_a_price_nothing_has_a_cost(recorder: RunRecorder) -> None:
    record = ended(recorder, PS, measurement(0.5))
    assert (record.price_per_hour, record.cost_per_million_examples) == (None, None)
