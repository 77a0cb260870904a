"""Addresses that are no Pushgateway's cost one line."""

import socket
import threading

import pytest
from open_folders import made_record

from harness.errors import UsageError
from harness.measure.prometheus import push_newest
from reports.rows.row import repeat_gauges

TOLD = "push_gateway: must be the address of a Pushgateway, such as"


@pytest.mark.parametrize("url", ["http://127.0.0.1:abc", "nonsense://x", "http://127.0.0.1:1"])
def test_what_is_no_address_is_named(url: str) -> None:
    with pytest.raises(UsageError, match=TOLD):
        push_newest([made_record(examples_per_s=1.0)], url, repeat_gauges())


def test_something_that_speaks_no_http_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"SSH-2.0-OpenSSH_9\r\n\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(UsageError, match=TOLD):
            push_newest(
                [made_record(examples_per_s=1.0)],
                f"http://127.0.0.1:{server.getsockname()[1]}",
                repeat_gauges(),
            )
        thread.join()
