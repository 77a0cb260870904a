""" """

import socket
import threading

import pytest
from ports import kept_port

from harness.provision.ray import client
from harness.provision.ray.client import Head, while_up


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


def test_a_head_that_lets_nobody_in_is_given_up_after_a_while_and_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "_BUSY_S", 0.2)
    monkeypatch.setattr(client.ray, "is_initialized", lambda: True)
    with kept_port() as port:
        head = Head(f"127.0.0.1:{port}")
        with socket.create_server(("127.0.0.1", port)):
            assert head.is_up()
        assert not head.is_up()
        with socket.create_server(("127.0.0.1", port)):
            assert not head.is_up()  # another head, which knows nothing of this run
    with pytest.raises(ConnectionError, match="Ray has ended"):
        head.call(lambda: 3)
