"""Failures of users' code that come from having no network, as isolated commands have none."""

import errno
import socket
from pathlib import Path

from harness.errors import causes

_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)


def way_out_offline(error: BaseException) -> str:
    """What to add to the message of an error that came of asking for the network where there is none."""
    if any(_is_of_network(one) for one in causes(error)) and not _has_network():
        return "; a run has no network: keep what it needs on this machine, or give --no-isolation"
    return ""


def _is_of_network(error: BaseException) -> bool:
    return isinstance(error, socket.gaierror) or (isinstance(error, OSError) and error.errno in _UNREACHABLE)


def _has_network() -> bool:
    try:
        _, *routes = Path("/proc/net/route").read_text().splitlines()
    except (OSError, ValueError):
        return True
    return bool(routes)
