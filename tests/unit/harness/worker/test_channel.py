import socket
import threading
import time

import pytest

from harness.worker.channel import ChannelClosedError, receive_message, send_message


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


def test_a_deadline_holds_for_the_whole_message() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(b"\x05\0\0\0\0\0\0\0ab")
        started_s = time.monotonic()
        with pytest.raises(TimeoutError):
            receive_message(right, deadline_s=started_s + 0.05)
        with pytest.raises(TimeoutError):
            send_message(right, bytes(10_000_000), deadline_s=time.monotonic() + 0.05)
        assert time.monotonic() - started_s < 2.0
