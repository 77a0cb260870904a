import itertools
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from harness.worker.process import messages
from harness.worker.process.messages import ChannelClosedError, receive_message, send_message


def send_all(end: socket.socket, messages: list[bytes]) -> None:
    for message in messages:
        send_message(end, message)


def test_messages_keep_their_bounds() -> None:
    left, right = socket.socketpair()
    messages = [b"", b"one", bytes(3_000_000)]
    with left, right:
        sender = threading.Thread(target=send_all, args=(left, messages))
        sender.start()
        assert [bytes(receive_message(right)) for _ in messages] == messages
        sender.join()


def test_a_closed_end_is_told() -> None:
    left, right = socket.socketpair()
    with right:
        left.sendall(b"\x05\0\0\0\0\0\0\0ab")
        left.close()
        with pytest.raises(ChannelClosedError):
            receive_message(right)
        with pytest.raises(ChannelClosedError):
            send_message(right, b"x")


def test_a_deadline_holds_for_the_whole_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of it comes in time, and the last too late all the same."""
    left, right = socket.socketpair()
    with left, right:
        for deadline_s, comes in ((1.5, True), (0.5, False)):
            send_message(left, b"ab")
            looks = itertools.count()
            clock = SimpleNamespace(monotonic=lambda looks=looks: float(next(looks)))
            monkeypatch.setattr(messages, "time", clock)
            if comes:
                assert receive_message(right, deadline_s=deadline_s) == b"ab"
            else:
                with pytest.raises(TimeoutError):
                    receive_message(right, deadline_s=deadline_s)


def test_a_message_that_nobody_takes_is_given_up() -> None:
    left, right = socket.socketpair()
    with left, right, pytest.raises(TimeoutError):
        send_message(left, bytes(10_000_000), deadline_s=time.monotonic() + 0.05)
