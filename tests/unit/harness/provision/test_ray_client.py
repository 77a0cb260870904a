import threading

import pytest

from harness.provision.ray_client import while_up


def test_it_gives_what_the_call_gives() -> None:
    assert while_up(lambda: 3, lambda: True) == 3
    with pytest.raises(KeyError, match="missing"):
        while_up(lambda: {}["missing"], lambda: True)


def test_a_call_that_never_returns_ends_with_ray() -> None:
    never = threading.Event()
    looks: list[bool] = [True, False]
    with pytest.raises(ConnectionError, match="Ray has ended"):
        while_up(never.wait, lambda: looks.pop(0))
    assert looks == []
    never.set()
