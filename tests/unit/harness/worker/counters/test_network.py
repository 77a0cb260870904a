""" """

import dataclasses
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.worker.counters.network import (
    Interface,
    Reading,
    TcpConnection,
    merge,
    plain_address,
    read_connections,
    read_interface,
    sent_bytes,
)

HOST = "10.0.0."


def end(worker: int, port: int) -> tuple[str, int]:
    return f"{HOST}{worker}", port


def connection(
    local: tuple[str, int], remote: tuple[str, int], acked: int, *, again: int = 0, inode: int = 1
) -> TcpConnection:
    return TcpConnection(
        inode=inode, local=local, remote=remote, acked_bytes=acked, retransmitted_bytes=again
    )


def test_bytes_go_to_the_worker_that_holds_the_other_end() -> None:
    before: list[Reading] = [
        (connection(end(0, 50), end(1, 2222), 100, again=5),),
        (connection(end(1, 2222), end(0, 50), 40),),
        (),
    ]
    after: list[Reading] = [
        (connection(end(0, 50), end(1, 2222), 1100, again=25), connection(end(0, 51), end(2, 3333), 600)),
        (connection(end(1, 2222), end(0, 50), 240),),
        (connection(end(2, 3333), end(0, 51), 0),),
    ]
    traffic = merge(before, after, n_steps=10)
    assert traffic is not None
    assert traffic.matrix == ((0, 100, 60), (20, 0, 0), (0, 0, 0))
    assert traffic.bytes_per_step == 180
    assert traffic.retransmitted_bytes_per_step == 2
    assert traffic.n_closed == 0


def test_connections_to_others_and_to_itself_do_not_count() -> None:
    after: list[Reading] = [
        (
            connection(end(0, 50), ("192.0.2.1", 443), 999),
            connection(end(0, 60), end(0, 61), 999),
            connection(end(0, 61), end(0, 60), 999),
        ),
        (),
    ]
    traffic = merge([(), ()], after, n_steps=1)
    assert traffic is not None
    assert traffic.bytes_per_step == 0


def test_reused_addresses_are_a_new_connection_and_the_old_one_is_closed() -> None:
    old = connection(end(0, 50), end(1, 2), 5000, inode=1)
    new = connection(end(0, 50), end(1, 2), 70, inode=2)
    peer = connection(end(1, 2), end(0, 50), 0, inode=3)
    traffic = merge([(old,), (peer,)], [(new,), (peer,)], n_steps=1)
    assert traffic is not None
    assert traffic.matrix[0][1] == 70
    assert traffic.n_closed == 1


def test_a_missing_reading_makes_it_unknown() -> None:
    assert merge([(), None], [(), ()], n_steps=1) is None
    assert merge([(), ()], [None, ()], n_steps=1) is None


@given(
    st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, 3)), st.integers(0, 10**12)),
    st.integers(1, 9),
)
def test_every_byte_between_workers_is_counted_once(sent: dict[tuple[int, int], int], n_steps: int) -> None:
    readings: list[list[TcpConnection]] = [[] for _ in range(4)]
    for (i, j), n_bytes in sent.items():
        if i != j:
            here, there = end(i, 1000 + j), end(j, 5000 + i)
            readings[i].append(connection(here, there, n_bytes))
            readings[j].append(connection(there, here, 0))
    traffic = merge([()] * 4, [tuple(reading) for reading in readings], n_steps=n_steps)
    assert traffic is not None
    expected = sum(n_bytes for (i, j), n_bytes in sent.items() if i != j)
    assert traffic.bytes_per_step * n_steps == pytest.approx(expected)
    doubled = [
        tuple(dataclasses.replace(c, acked_bytes=2 * c.acked_bytes) for c in reading) for reading in readings
    ]
    again = merge([tuple(reading) for reading in readings], doubled, n_steps=n_steps)
    assert again is not None
    assert again.bytes_per_step == pytest.approx(traffic.bytes_per_step)


def test_addresses_do_not_depend_on_the_family() -> None:
    assert plain_address("::ffff:127.0.0.1") == plain_address("127.0.0.1") == "127.0.0.1"
    assert plain_address("::1") == "::1"


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")]
)
def test_a_real_connection(family: socket.AddressFamily, host: str) -> None:
    if read_connections() is None:
        pytest.skip("this kernel offers no inet_diag")
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(family) as client:
        client.connect((host, listener.getsockname()[1]))
        served, _ = listener.accept()
        with served:
            before = read_connections()
            n_bytes = 300_000
            client.sendall(bytes(n_bytes // 2))
            client.sendall(bytes(n_bytes // 2))
            left = n_bytes
            while left:
                left -= len(served.recv(65536))
            after = read_connections()
            local = ("127.0.0.1", client.getsockname()[1])
            remote = ("127.0.0.1", listener.getsockname()[1])
    assert before is not None
    assert after is not None

    def split(reading: Reading) -> list[Reading]:
        return [tuple(c for c in reading if c.local == local), tuple(c for c in reading if c.local == remote)]

    traffic = merge(split(before), split(after), n_steps=1)
    assert traffic is not None
    assert traffic.matrix == ((0, n_bytes), (0, 0))


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
