"""The processes of a case: which are compared with the reference, and which are timed."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.cluster import ClusterShape
from harness.experiment.model import Measure
from harness.measure.timeouts import USUAL
from harness.provision.protocols import ClusterFacts
from harness.run import open_case
from harness.run.open_case import OpenCase
from strategies.plan.execution import Execution

MEASURE = Measure(warmup_steps=2, steps=4, repeats=1, interleave=True, seed=0, batch="global")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Log of what is done with processes."""
    log: list[str] = []

    @contextmanager
    def ready(*_: object, are_checked: bool = False) -> Iterator[tuple[str, tuple[()]]]:
        name = "to be checked" if are_checked else "to be timed"
        log.append(f"start those {name}")
        yield name, ()
        log.append(f"end those {name}")

    def checked(processes: str, *_: object, **__: object) -> tuple[str, str]:
        log.append(f"check those {processes}")
        return "verdict", "doubt"

    def collector(processes: str, **_: object) -> Any:
        return SimpleNamespace(warm_up=lambda _steps: log.append(f"time those {processes}"))

    for name, stand_in in (
        ("ready_processes", ready),
        ("checked", checked),
        ("Collector", collector),
        ("measured_links", lambda *_: ()),
    ):
        monkeypatch.setattr(open_case, name, stand_in)
    return log


def opened(device: Any, *, has_reference: bool = True) -> OpenCase:
    execution = Execution()
    plan = SimpleNamespace(
        execution=execution, replicas_per_task=(1,), faults=(), batch_size=8, strategy_class="exact"
    )
    capture = SimpleNamespace(summary=SimpleNamespace(variables=(), n_nodes=1))
    case = SimpleNamespace(shape=ClusterShape(workers=1, device=device))
    reference = "reference" if has_reference else None
    repeat = SimpleNamespace(plan=plan, capture=capture, case=case, reference=reference, number=0)
    cluster = SimpleNamespace(facts=lambda: ClusterFacts(exposed=True))
    opened = OpenCase(cast("Any", cluster), cast("Any", repeat), MEASURE, USUAL)
    opened.open()
    return opened


def test_gpus_are_checked_on_processes_that_are_gone_when_others_are_timed(log: list[str]) -> None:
    case = opened("gpu")
    assert (case._equivalence, case._doubt) == ("verdict", "doubt")
    assert log == [
        "start those to be checked",
        "check those to be checked",
        "end those to be checked",
        "start those to be timed",
        "time those to be timed",
    ]


@pytest.mark.parametrize("device", ["cpu", "tpu", "tpu-emulated"])
def test_other_devices_are_timed_by_the_processes_that_were_checked(device: str, log: list[str]) -> None:
    opened(device)
    assert log == ["start those to be timed", "check those to be timed", "time those to be timed"]


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_repeat_without_a_reference_starts_processes_once(device: str, log: list[str]) -> None:
    assert opened(device, has_reference=False)._equivalence is None
    assert log == ["start those to be timed", "time those to be timed"]
