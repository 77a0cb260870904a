from typing import Any, cast

import pytest

from harness.measure.live import Harmless, Left, Moment


class Faulty:
    """Cannot do anything that it is told."""

    def window(self, moment: object) -> None:
        raise RuntimeError("no such family\nof metrics")

    def ended(self, record: object, steps: object, left: object) -> None:
        raise OSError("port closed")


def test_a_mistake_of_one_who_looks_on_is_noted_and_ends_no_run() -> None:
    notes: list[str] = []
    onlooker = Harmless(cast("Any", Faulty()), notes.append)
    onlooker.window(cast("Moment", None))
    onlooker.ended(cast("Any", None), None, Left(n_repeats=1, seconds=None))
    assert notes == ["metrics: RuntimeError: no such family", "metrics: OSError: port closed"]


def test_an_interrupt_is_no_mistake() -> None:
    class Interrupted(Faulty):
        def window(self, moment: object) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Harmless(cast("Any", Interrupted()), print).window(cast("Moment", None))
