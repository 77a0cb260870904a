"""inet_diag, by which the kernel tells the bytes of each TCP connection: whether it answers here."""

from __future__ import annotations

import os
import socket
import struct

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR = 2


def inet_diag_problem() -> str | None:
    """Why the kernel does not answer; None where it does."""
    # inet_diag_req_v2: family, protocol, extensions, pad, states, then a socket id of zeros (match all).
    body = struct.pack("=BBBxI48x", socket.AF_INET, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
    header = struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as link:
            link.settimeout(2.0)
            link.sendto(header + body, (0, 0))
            answer = link.recv(65536)
    except (AttributeError, OSError) as error:
        return f"not available ({getattr(error, 'strerror', None) or error})"
    kind = struct.unpack_from("=IH", answer)[1]
    if kind == _NLMSG_ERROR:
        code = -struct.unpack_from("=i", answer, 16)[0]
        return f"refused ({os.strerror(code)})" if code else None
    return None
