"""`stratbench verify`, `plan` and `transform`: what they ask for, and what they show."""

import pytest
from called import Pipeline, call, document

from harness.experiment.references import StrategyRef, WorkloadRef
from harness.requests import Target, VerifyRequest


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
    asked = [item[1] if isinstance(item, tuple) else item for item in pipeline.asked]
    assert [request.live for request in asked] == [False, True, False]


def test_verify_asks_as_told(capsys: pytest.CaptureFixture[str], pipeline: Pipeline) -> None:
    status, captured = call(capsys, "verify", "wide-mlp", "--strategy", "ps")
    target = Target(workload=WorkloadRef(reference="wide-mlp"), strategy=StrategyRef(name="ps"))
    assert pipeline.asked == [VerifyRequest(target=target, steps=4, dtype=None)]
    assert (target.workers, target.replicas) == (2, 1)
    assert status == 0
    shown = captured.out.partition("\n")[2]
    assert shown.startswith("EQUIVALENT: ps (exact) on wide-mlp, 2 workers x 1 replicas, 4 steps in float64")
    assert "tolerance 5.7e-14, noise floor nan" in shown
    assert [line.split()[0] for line in shown.splitlines()[4:]] == ["v8", "v7", "v6", "v5", "v4"]


@pytest.mark.parametrize(
    ("equivalent", "word", "expected"), [(False, "NOT EQUIVALENT", 1), (None, "UNDECIDABLE", 1)]
)
def test_verify_that_fails_prints_its_document_all_the_same(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline, equivalent: bool | None, word: str, expected: int
) -> None:
    pipeline.equivalent = equivalent
    status, captured = call(capsys, "verify", "wide-mlp", "--strategy", "ps", "--json")
    assert (status, document(captured)["equivalent"]) == (expected, equivalent)
    assert document(captured)["noise_floor"] is None
    status, captured = call(capsys, "verify", "wide-mlp", "--strategy", "ps")
    assert status == expected
    assert f"{word}: ps" in captured.out
    assert "; too little can be judged" in captured.out


def test_verify_names_what_a_passed_check_says_nothing_of(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    pipeline.undecidable = ["v0", "v1", "v2", "v3"]
    status, captured = call(capsys, "verify", "wide-mlp", "--strategy", "ps")
    assert status == 0
    assert "UNDECIDED: nothing can be told of v0, v1, v2 and 1 more, which" in captured.out
    pipeline.equivalent = None
    assert "UNDECIDED:" not in call(capsys, "verify", "wide-mlp", "--strategy", "ps")[1].out


@pytest.mark.parametrize(
    ("separable", "word"), [(True, "SEPARABLE"), (False, "NOT SEPARABLE"), (None, "SEPARABILITY UNKNOWN")]
)
def test_verify_says_whether_shards_mean_what_the_step_means(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline, separable: bool | None, word: str
) -> None:
    pipeline.separable = separable
    status, captured = call(capsys, "verify", "wide-mlp", "--strategy", "ps")
    assert status == 0
    assert f"\n{word}: what shards make of it, and of the whole batch\n" in captured.out


def test_plan_shows_places_and_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    status, captured = call(capsys, "plan", "wide-mlp", "--strategy", "ps")
    assert status == 0
    assert "dense/kernel  64x1200  307 kB  axis 0: 32, 32; destinations 0, 1  ps" in captured.out
    assert "614 kB per step" in captured.out
    assert "among it statistics of 2 layers: 768 B in each replica" in captured.out
    assert "server bytes: 0: 307 kB, 1: 0 B" in captured.out
    assert "worker bytes: worker:1 614 kB" in captured.out
    assert "warning: nothing is partitioned\nvariable " in captured.out
    assert "note: one variable stays whole" in captured.out


def test_transform_shows_passes_or_text(capsys: pytest.CaptureFixture[str], pipeline: Pipeline) -> None:
    status, captured = call(capsys, "transform", "wide-mlp", "-s", "ps", "--rank", "1")
    assert status == 0
    assert pipeline.asked[0].rank == 1
    assert "replicate" in captured.out
    assert "10 nodes became 24 in 0.01 s" in captured.out
    status, captured = call(capsys, "transform", "wide-mlp", "-s", "ps", "--text")
    assert captured.out.endswith("node a\nnode b\n")
