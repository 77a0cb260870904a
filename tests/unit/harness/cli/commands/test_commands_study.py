"""`stratbench verify`, `plan` and `transform`: what they ask for, and what they show."""

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from called import PLAN, Pipeline, call, document, verified

from harness.cluster import ClusterShape
from harness.experiment.references import StrategyRef, WorkloadRef
from harness.planned_target import Planned, Verified, shape_of
from harness.requests import Target, VerifyRequest
from harness.verification.verdict import BoundFigure, BoundVerdict, Verdict
from strategies.plan.schema import StrategyClass, TaskTraffic
from strategies.plan.traffic import CollectiveBytes

NAMES = [f"v{index}" for index in range(9)]


@pytest.mark.parametrize(
    "command",
    ["run quickstart", "verify wide-mlp -s ps", "plan wide-mlp -s ps", "transform wide-mlp -s ps"],
)
def test_only_who_waits_at_a_terminal_is_told_what_goes_on(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    call(capsys, *command.split())
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    call(capsys, *command.split())
    call(capsys, *command.split(), "--json")
    requests_seen = [item[1] if isinstance(item, tuple) else item for item in pipeline.asked]
    assert [request.live for request in requests_seen] == [False, True, False]


def test_verify_asks_as_told(capsys: pytest.CaptureFixture[str], pipeline: Pipeline) -> None:
    status, captured = call(capsys, "verify", "wide-mlp", "--strategy", "ps")
    target = Target(workload=WorkloadRef(reference="wide-mlp"), strategy=StrategyRef(name="ps"))
    assert pipeline.asked == [VerifyRequest(target=target, steps=4, dtype=None)]
    assert (target.workers, target.replicas) == (2, 1)
    assert status == 0
    output = captured.out.partition("\n")[2]
    assert output.startswith(
        "EQUIVALENT: ps (exact) on wide-mlp, 2 workers x 1 replicas: after 4 steps in float64, all 9 "
        "variables (weights, optimizer slots, state) equal those of a single-device run on the same shards; "
        "closest to its tolerance: 1e-16 of 1.11e-14 (v8, relative to its update)\n"
    )
    assert [line.split()[0] for line in output.splitlines()[5:]] == ["v8", "v7", "v6", "v5", "v4"]


@pytest.mark.parametrize(
    ("answer", "equivalent", "word", "reason"),
    [
        (verified(wrong=["v1"]), False, "NOT EQUIVALENT", "v1 is off by 1, the tolerance is 5e-14"),
        (verified(noisy=NAMES), None, "UNDECIDABLE", "only 0 % of the elements of the m slots can be judged"),
    ],
)
def test_verify_that_fails_prints_its_document_all_the_same(
    capsys: pytest.CaptureFixture[str],
    pipeline: Pipeline,
    answer: Verified,
    equivalent: bool | None,
    word: str,
    reason: str,
) -> None:
    pipeline.verified = answer
    status, captured = call(capsys, "verify", "wide-mlp", "--strategy", "ps", "--json")
    assert (status, document(captured)["equivalent"]) == (1, equivalent)
    assert document(captured)["reason"].startswith(reason)
    assert document(captured)["noise_floor"] is None
    status, captured = call(capsys, "verify", "wide-mlp", "--strategy", "ps")
    assert status == 1
    assert f"{word}: ps" in captured.out
    counted = "1 of 9 variables (weights, optimizer slots, state) differs from those of a single-device run"
    assert (counted in captured.out) is (equivalent is False)
    assert f"{'; ' if equivalent is False else 'float64, '}{reason}" in captured.out


def test_verify_names_what_a_passed_check_says_nothing_of(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    pipeline.verified = verified(noisy=NAMES[:4])
    status, captured = call(capsys, "verify", "wide-mlp", "--strategy", "ps")
    assert status == 0
    assert "UNDECIDED: v0, v1, v2 and 1 more: the update is zero or" in captured.out
    pipeline.verified = verified(noisy=NAMES)
    assert "UNDECIDED:" not in call(capsys, "verify", "wide-mlp", "--strategy", "ps")[1].out


@pytest.mark.parametrize(
    ("within", "beginning", "end"),
    [
        (True, "WITHIN ITS BOUND: ps", "closest: v0 in step 2, summed, lost 0.25 of at most 0.5\n"),
        (False, "BEYOND ITS BOUND: ps", "; v0 in step 2, summed, lost 0.25, the bound is 0.125\n"),
        (None, "UNDECIDABLE: ps", "; rounding hides it\n"),
    ],
)
def test_verify_shows_how_much_of_its_bound_a_compressor_used(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline, within: bool | None, beginning: str, end: str
) -> None:
    figure = BoundFigure(where="v0 in step 2, summed,", error=0.25, bound=0.5 if within else 0.125)
    reasons = {
        True: None,
        False: "v0 in step 2, summed, lost 0.25, the bound is 0.125",
        None: "rounding hides it",
    }
    bound = BoundVerdict(within=within, reason=reasons[within], worst=None if within is None else figure)
    verification = replace(verified().verification, strategy_class="bounded", bound=bound)
    pipeline.verified = replace(verified(), verification=verification)
    status, captured = call(capsys, "verify", "wide-mlp", "--strategy", "ps")
    first = captured.out.partition("\n")[2].partition("\n")[0] + "\n"
    assert (status, first.startswith(beginning), first.endswith(end)) == (0 if within else 1, True, True)
    answer = document(call(capsys, "verify", "wide-mlp", "--strategy", "ps", "--json")[1])
    expected = None if within is None else {"where": figure.where, "error": 0.25, "bound": figure.bound}
    assert answer["bound_check"] == expected


def test_verify_shows_how_far_other_training_takes_the_weights(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    """A counter that differs says nothing about them."""
    counter, weight, *_ = verified().verification.verdict.variables
    variables = (
        replace(counter, kind="state", update_error=inf),
        replace(weight, kind="trainable", update_error=0.25),
    )
    verification = replace(
        verified().verification, strategy_class="statistical", verdict=Verdict(variables=variables)
    )
    pipeline.verified = replace(verified(), verification=verification)
    status, captured = call(capsys, "verify", "wide-mlp", "--strategy", "ps")
    assert status == 0
    assert "NOT JUDGED, trains differently by design: ps" in captured.out
    assert (
        "weights are off from those of a single-device run on the same shards by up to 0.25" in captured.out
    )
    assert "inf" not in captured.out


@pytest.mark.parametrize(
    ("separable", "word"), [(True, "SEPARABLE"), (False, "NOT SEPARABLE"), (None, "SEPARABILITY UNKNOWN")]
)
def test_verify_says_whether_shards_mean_what_the_step_means(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline, separable: bool | None, word: str
) -> None:
    pipeline.verified = verified(separable=separable)
    status, captured = call(capsys, "verify", "wide-mlp", "--strategy", "ps")
    assert status == 0
    assert f"\n{word}: what shards make of it\n" in captured.out
    assert ("note: EQUIVALENT compares the strategy with one device" in captured.out) is (separable is False)


@pytest.mark.parametrize(
    ("captured_as", "word"), [(True, "CAPTURED AS WRITTEN"), (None, "CAPTURE NOT COMPARED")]
)
def test_verify_says_whether_the_captured_step_is_its_author_s(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline, captured_as: bool | None, word: str
) -> None:
    pipeline.verified = verified(captured=captured_as)
    status, captured = call(capsys, "verify", "wide-mlp", "--strategy", "ps")
    assert status == 0
    assert f"\n{word}: what capture makes of it\n" in captured.out


@pytest.mark.parametrize(("kind", "equivalent"), [("exact", False), ("bounded", None), ("statistical", None)])
def test_with_another_step_than_its_author_s_no_strategy_is_right(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline, kind: StrategyClass, equivalent: bool | None
) -> None:
    wrong = verified(captured=False)
    pipeline.verified = replace(wrong, verification=replace(wrong.verification, strategy_class=kind))
    status, captured = call(capsys, "verify", "wide-mlp", "--strategy", "ps", "--json")
    answer = document(captured)
    assert (status, answer["equivalent"]) == (1, equivalent)
    assert answer["reason"] == "what capture makes of it"
    text = call(capsys, "verify", "wide-mlp", "--strategy", "ps")[1].out
    assert "\nNOT CAPTURED AS WRITTEN: ps" in text
    assert ": after 4 steps in float64, what capture makes of it\n" in text
    assert answer["capture"] == {
        "equal": False,
        "explanation": "what capture makes of it",
        "steps": 2,
        "worst": None,
        "max_error": None,
        "tolerance": None,
        "not_compared": [],
    }


def test_plan_shows_places_and_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    status, captured = call(capsys, "plan", "wide-mlp", "--strategy", "ps")
    assert status == 0
    assert "dense/kernel  64x1200  307 kB  axis 0: 32, 32; destinations 0, 1  ps" in captured.out
    assert "614 kB per step" in captured.out
    assert "included: batch statistics of 2 layers, 768 B per replica" in captured.out
    assert "busiest link: 307 kB sent and 307 kB received per step by task 0, 1" in captured.out
    assert "memory of servers, by task: 0: 307 kB, 1: 0 B" in captured.out
    assert "memory of the largest replica: 614 kB" in captured.out
    assert "warning: nothing is partitioned\nvariable " in captured.out
    assert "note: one variable stays whole" in captured.out


def test_plan_shows_bytes_between_workers_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    command = ("plan", "wide-mlp", "--strategy", "ps")
    message = document(call(capsys, *command, "--json")[1])
    traffic = {"tasks": [0, 1], "sent_bytes": 307200, "received_bytes": 307200}
    assert message["traffic"] == [{**traffic, "pull_sent_bytes": 0, "pull_received_bytes": 0}]
    assert not {"payload_matrix", "pull_matrix"} & message.keys()
    message = document(call(capsys, *command, "--matrix", "--json")[1])
    assert message["payload_matrix"] == [[0, 307200], [307200, 0]]
    assert message["pull_matrix"] == [[0, 0], [0, 0]]
    text = call(capsys, *command, "--matrix")[1].out
    assert "bytes per step from  to 0    to 1\n0                    0 B     307 kB\n" in text
    status, captured = call(capsys, *command, "--workers", "1001", "--matrix")
    assert status == 2
    assert captured.err == (
        "stratbench: matrix: is for at most 1000 workers, got 1001; leave it out, `traffic` has the bytes of "
        "each worker\n"
    )


def test_plan_states_alike_workers_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline
) -> None:
    many = PLAN.model_copy(
        update={
            "replicas_per_task": (1,) * 4096,
            "server_bytes": (8000, *(4000,) * 4000, *(0,) * 95),
            "traffic": (TaskTraffic(tasks=tuple(range(4096)), sent_bytes=5000, received_bytes=5000),),
        }
    )
    monkeypatch.setattr(pipeline, "plan", lambda _: Planned(plan=many))
    text = call(capsys, "plan", "wide-mlp", "--strategy", "ps", "--workers", "4096")[1].out
    assert "busiest link: 5.00 kB sent and 5.00 kB received per step by task 0 to 4095\n" in text
    assert "memory of servers, by task: 0: 8.00 kB, 1 to 4000: 4.00 kB, 4001 to 4095: 0 B\n" in text


_EIGHT = ("plan", "wide-mlp", "-s", "ps", "--workers", "2", "--replicas", "4", "--slice")


def test_plan_says_what_its_collectives_cost_on_a_slice(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    status, captured = call(capsys, *_EIGHT, "v4:2x2x2")
    assert status == 0
    assert (
        "on v4:2x2x2: 8 chips as a mesh, with 3 of 6 links in use, each of 50.0 GB/s one way\n"
        "lower limit per step, without latency: 35.0 ms: all-reduce 35.0 ms (3.00 GB)\n"
    ) in captured.out
    message = document(call(capsys, *_EIGHT, "v4:2x2x2", "--json")[1])["slice"]
    assert message == {
        "accelerator": "v4",
        "topology": "2x2x2",
        "n_chips": 8,
        "n_devices": 8,
        "wrapped": [False, False, False],
        "links_per_chip": 6,
        "links_in_use": 3,
        "link_bytes_per_s": 50e9,
        "link_source": message["link_source"],
        "all_reduce_bytes": 3e9,
        "reduce_scatter_bytes": 0,
        "all_gather_bytes": 0,
        "all_reduce_s": pytest.approx(0.035),
        "reduce_scatter_s": None,
        "all_gather_s": None,
        "left_out": [],
    }
    assert "arXiv:2304.01433" in message["link_source"]


def test_plan_names_the_kinds_of_collectives_and_counts_what_goes_by_none(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    pipeline.collectives = CollectiveBytes(
        all_reduce_bytes=0, reduce_scatter_bytes=8e9, all_gather_bytes=4e9, left_out=("table", "other")
    )
    pipeline.collective_s = {"scatter": 0.070, "gather": 0.035}
    status, captured = call(capsys, *_EIGHT, "v5e:2x4")
    assert status == 0
    assert "on v5litepod:2x4: 8 chips as a mesh, with 2 of 4 links in use" in captured.out
    assert (
        "lower limit per step, without latency: 105 ms: reduce-scatter 70.0 ms (8.00 GB), all-gather "
        "35.0 ms (4.00 GB); variables on servers or with sparse gradients not included: 2\n"
    ) in captured.out
    pipeline.collectives = CollectiveBytes(
        all_reduce_bytes=0, reduce_scatter_bytes=0, all_gather_bytes=0, left_out=("table",)
    )
    pipeline.collective_s = {}
    captured = call(capsys, *_EIGHT, "v5e:2x4")[1]
    assert (
        "the plan has no collectives; variables on servers or with sparse gradients not included: 1"
        in captured.out
    )


@pytest.mark.parametrize(
    ("name", "workers", "shape"),
    [
        ("v4:4x4x4", 16, "a torus"),
        ("v5e:8x16", 32, "a torus along its axis of 16"),
        ("v6e:8x8", 16, "a mesh"),
    ],
)
def test_plan_says_where_a_slice_wraps_around(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline, name: str, workers: int, shape: str
) -> None:
    command = ("plan", "wide-mlp", "-s", "ps", "--workers", str(workers), "--replicas", "4", "--slice", name)
    assert f" chips as {shape}, with " in call(capsys, *command)[1].out


def test_plan_without_a_slice_says_nothing_of_one(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    status, captured = call(capsys, "plan", "wide-mlp", "-s", "ps", "--json")
    assert (status, "slice" in document(captured)) == (0, False)
    assert pipeline.asked[0].slice is None


def test_gpus_are_shared_where_that_is_asked_for(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    for command in ("plan", "verify"):
        for options, shares in ((("--share-gpus",), True), ((), False)):
            text = call(capsys, command, "wide-mlp", "-s", "ps", "--device", "gpu", *options)[1].out
            assert ("replicas share GPUs: times" in text) is (shares and command == "plan")
            target = pipeline.asked.pop().target
            assert shape_of(target) == ClusterShape(workers=2, device="gpu", share_gpus=shares)


def test_transform_shows_passes_or_text(capsys: pytest.CaptureFixture[str], pipeline: Pipeline) -> None:
    status, captured = call(capsys, "transform", "wide-mlp", "-s", "ps", "--rank", "1")
    assert status == 0
    assert pipeline.asked[0].rank == 1
    assert "replicate" in captured.out
    assert "nodes: 10 before, 24 after (0.01 s)" in captured.out
    status, captured = call(capsys, "transform", "wide-mlp", "-s", "ps", "--text")
    assert captured.out.endswith("node a\nnode b\n")


def test_transform_asks_for_stages_and_says_where_they_are(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline, tmp_path: Path
) -> None:
    stages = tmp_path / "of my step"
    status, captured = call(capsys, "transform", "wide-mlp", "-s", "ps", "--stages", str(stages))
    assert (status, pipeline.asked[0].stages) == (0, stages)
    assert f"tensorboard --logdir '{stages}'" in captured.out
    assert call(capsys, "transform", "wide-mlp", "-s", "ps", "--stages", "x", "--text")[0] == 2
