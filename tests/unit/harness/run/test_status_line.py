"""A status line is for who waits at a terminal, and leaves nothing behind."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from harness import pipeline
from harness.experiment.references import StrategyRef, WorkloadRef
from harness.requests import PlanRequest, Target, TransformRequest, VerifyRequest
from harness.run.progress import StatusLine
from strategies.plan.schema import Plan

TARGET = Target(workload=WorkloadRef(reference="wide-mlp"), strategy=StrategyRef(name="ps"))
PLAN = Plan(
    workload="wide-mlp",
    strategy="ps",
    strategy_params={},
    strategy_class="exact",
    replicas_per_task=(1, 1),
    batch_size=16,
    device="cpu",
    nodes=(),
    payload_bytes_per_step=0,
    payload_matrix=((0, 0), (0, 0)),
    server_bytes=(0, 0),
    worker_bytes=0,
)


def watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")


def test_it_takes_names_as_they_are_and_keeps_off_standard_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch)
    with StatusLine(live=True).doing("capturing [bold]x[/bold]"):
        pass
    told = capsys.readouterr()
    assert "capturing [bold]x[/bold]" in told.err
    assert told.out == ""


def test_it_says_nothing_to_nobody(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch)
    with StatusLine(live=False).doing("capturing"):
        pass
    assert capsys.readouterr().err == ""


def test_it_leaves_a_file_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with StatusLine(live=True).doing("capturing"):
        pass
    assert capsys.readouterr().err.strip() == ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer of a job, to which the verdict on the capture is added."""

    capture: object = None


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda live: pipeline.plan(PlanRequest(target=TARGET, live=live)), None),
        (
            lambda live: pipeline.verify(VerifyRequest(target=TARGET, live=live)),
            "running 4 steps of ps and of the single-device reference in float64",
        ),
        (
            lambda live: pipeline.transform(TransformRequest(target=TARGET, rank=1, live=live)),
            "rewriting the graph of worker 1 for ps",
        ),
    ],
)
def test_who_waits_for_a_command_is_told(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[bool], object],
    told: str | None,
    live: bool,
) -> None:
    @contextmanager
    def study(target: Target, *, status: StatusLine, **_: object) -> Iterator[SimpleNamespace]:
        with status.doing(f"capturing {target.workload}"):
            pass
        capture = SimpleNamespace(folder="", restored=None, facts=SimpleNamespace(verdict=None))
        yield SimpleNamespace(plan=PLAN, capture=capture, batches="", call=lambda *_: Answer())

    watch(monkeypatch)
    monkeypatch.setattr(pipeline, "study", study)
    ask(live)
    said = capsys.readouterr().err
    assert ("capturing wide-mlp" in said) is live
    assert told is None or (told in said) is live
