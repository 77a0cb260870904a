"""Durations measured elsewhere become rounds by the readings of a timer."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from harness.errors import MissingError
from harness.pytest_plugin.hooks import StepClock, record_rounds

DURATIONS_S = (0.1, 0.3, 1e-9, 0.7)


@dataclass(kw_only=True)
class Reader:
    """Reads a timer so many times around each round."""

    clock: StepClock
    n_readings: int = 2
    disabled: bool = False
    group: str | None = None
    extra_info: dict[str, object] = field(default_factory=dict)
    rounds_s: list[float] = field(default_factory=list)

    def pedantic(self, target: Callable[[], object], *, rounds: int = 1) -> object:
        for _ in range(0 if self.disabled else rounds):
            readings = [self.clock() for _ in range(self.n_readings)]
            self.rounds_s.append(readings[-1] - readings[0])
        return target()


def test_rounds_are_the_durations_to_the_last_bit() -> None:
    clock = StepClock()
    reader = Reader(clock=clock)
    record_rounds(reader, clock, DURATIONS_S)
    assert reader.rounds_s == list(DURATIONS_S)


@pytest.mark.parametrize("n_readings", [1, 3])
def test_a_timer_that_is_read_otherwise_is_an_error(n_readings: int) -> None:
    clock = StepClock()
    with pytest.raises(MissingError, match="must read its timer before and after each round, got "):
        record_rounds(Reader(clock=clock, n_readings=n_readings), clock, DURATIONS_S)


def test_a_disabled_benchmark_reads_nothing() -> None:
    clock = StepClock()
    reader = Reader(clock=clock, disabled=True)
    record_rounds(reader, clock, DURATIONS_S)
    assert reader.rounds_s == []
