"""`stratbench tune`: what it asks for, and what it shows."""

from pathlib import Path

import pytest
from called import DEFAULT, Pipeline, call, document

from harness.written_values import parse_rate_mbit


def test_it_asks_for_an_experiment_of_one_case(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    status, _ = call(capsys, "tune", "wide-mlp:units=16", "--strategy", "ps")
    (request,) = pipeline.asked
    spec = request.spec
    assert status == 0
    assert (request.seconds, request.out) == (180.0, None)
    assert (str(spec.workloads[0]), spec.strategies, spec.baseline) == (
        "wide-mlp:units=16",
        (DEFAULT,),
        DEFAULT,
    )
    assert (spec.cluster.provider, spec.cluster.workers, spec.measure.seed) == (("local",), (2,), 0)
    assert (spec.measure.repeats, spec.measure.trace) == (1, False)


def test_options_and_settings_say_where_and_how(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    command = "tune wide-mlp -s ps --provider docker --workers 3 --replicas 2 --link 1gbit --seconds 90"
    more = ["--seed", "7", "--out", "t.json", "--set", "measure.rounds=3"]
    assert call(capsys, *command.split(), *more)[0] == 0
    (request,) = pipeline.asked
    spec = request.spec
    assert (spec.cluster.provider, spec.cluster.workers) == (("docker",), (3,))
    assert (spec.cluster.replicas_per_worker, spec.cluster.link.rate_mbit) == ((2,), (1000.0,))
    assert (request.seconds, request.out) == (90.0, Path("t.json"))
    assert (spec.measure.seed, spec.measure.rounds) == (7, 3)


def test_options_lie_over_settings_as_those_of_a_run_do(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    settings = ["--set", "cluster.workers=4", "--set", "measure.seed=9"]
    assert call(capsys, "tune", "wide-mlp", "-s", "ps", *settings)[0] == 0
    assert call(capsys, "tune", "wide-mlp", "-s", "ps", *settings, "--workers", "2", "--seed", "0")[0] == 0
    shapes = [(request.spec.cluster.workers, request.spec.measure.seed) for request in pipeline.asked]
    assert shapes == [((4,), 9), ((2,), 0)]


def test_settings_change_neither_workload_nor_strategy(
    capsys: pytest.CaptureFixture[str], pipeline: Pipeline
) -> None:
    more = ["--set", "strategies=[ps,all-reduce]", "--set", "workloads=[digits-mlp]"]
    assert call(capsys, "tune", "wide-mlp", "-s", "ps", *more)[0] == 0
    spec = pipeline.asked[0].spec
    assert (list(map(str, spec.workloads)), list(map(str, spec.strategies))) == (["wide-mlp"], ["ps"])


def test_it_shows_what_was_tried_and_what_was_decided(capsys: pytest.CaptureFixture[str]) -> None:
    status, captured = call(capsys, "tune", "wide-mlp", "--strategy", "ps")
    assert status == 0
    assert "ps:local_proxy_variable=true  1.25× (1.2 to 1.3, n = 6)  chosen\n" in captured.out
    assert "failed: it fell over\n" in captured.out
    assert "ps:local_proxy_variable=true is faster than ps: 1.25× (1.2 to 1.3, n = 6)\n" in captured.out
    assert captured.out.endswith("run folder: runs/tune-x\nplan: tuned.plan.json\n")


def test_its_document_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    status, captured = call(capsys, "tune", "wide-mlp", "--strategy", "ps", "--json")
    message = document(captured)
    assert status == 0
    assert (message["plan"], message["strategy"]) == ("tuned.plan.json", "ps:local_proxy_variable=true")
    assert message["link"] == {"rate_mbit": 100.0}
    assert message["candidates"][0] == {
        "strategy": "ps:local_proxy_variable=true",
        "outcome": "chosen",
        "ratio": 1.25,
        "interval": {"low": 1.2, "high": 1.3},
        "n": 6,
        "why": None,
    }


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100mbit", 100.0),
        ("2.5 Gbit", 2500.0),
        ("500kbit", 0.5),
        ("40", None),
        ("fast", None),
        ("1tbit", None),
        ("-1", None),
        ("", None),
    ],
)
def test_rates_are_read_as_people_write_them(text: str, rate: float | None) -> None:
    assert parse_rate_mbit(text) == rate
