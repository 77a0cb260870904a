import dataclasses
import socket

import pytest

from harness.worker.counters.interface import Interface, read_interface, sent_bytes

N_BYTES = 1_000_000


def interface(index: int, sent: int, *, namespace: str = "net:[1]", kernel: str = "k") -> Interface:
    return Interface(kernel=kernel, namespace=namespace, index=index, sent_bytes=sent)


def test_an_interface_of_each_worker_counts_for_itself() -> None:
    before = [interface(2, 100, namespace="net:[1]"), interface(2, 50, namespace="net:[2]")]
    after = [interface(2, 1100, namespace="net:[1]"), interface(2, 250, namespace="net:[2]")]
    assert sent_bytes(before, after) == 1200


def test_an_interface_that_workers_share_counts_once_and_as_the_last_of_them_saw_it() -> None:
    before = [interface(1, 100), interface(1, 130)]
    after = [interface(1, 1130), interface(1, 1100)]
    assert sent_bytes(before, after) == 1000


def test_hosts_number_their_namespaces_alike() -> None:
    before = [interface(2, 0, kernel="a"), interface(2, 0, kernel="b")]
    after = [interface(2, 10, kernel="a"), interface(2, 30, kernel="b")]
    assert sent_bytes(before, after) == 40


@pytest.mark.parametrize(
    "after",
    [
        [interface(1, 5), None],
        [interface(1, 5), interface(3, 5)],
        [interface(1, 5), interface(2, 5, namespace="net:[2]")],
    ],
    ids=["unread", "another one", "another namespace"],
)
def test_what_was_not_read_on_both_sides_is_unknown(after: list[Interface | None]) -> None:
    before = [interface(1, 1), interface(2, 1)]
    assert sent_bytes(before, after) is None


@pytest.mark.parametrize(("address", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_what_goes_through_the_interface_of_an_address_is_counted(
    address: str, family: socket.AddressFamily
) -> None:
    before = read_interface(address)
    if before is None:
        pytest.skip(f"no interface with {address}, or no counters")
    with (
        socket.create_server((address, 0), family=family) as server,
        socket.create_connection(server.getsockname()[:2], timeout=60) as ours,
        server.accept()[0] as theirs,
    ):
        ours.sendall(b"x" * N_BYTES)
        ours.shutdown(socket.SHUT_WR)
        while theirs.recv(1 << 20):
            pass
    after = read_interface(address)
    assert after is not None
    assert dataclasses.replace(after, sent_bytes=before.sent_bytes) == before
    assert after.sent_bytes - before.sent_bytes >= N_BYTES


def test_an_address_of_nobody_has_no_interface() -> None:
    assert read_interface("192.0.2.200") is None
