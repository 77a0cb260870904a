"""A private network namespace for a command, so that nothing outside can reach its servers.

TensorFlow's servers listen on every address of their namespace without authentication. In a namespace with
nothing but its own loopback, only the command can reach them.
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path
from signal import Signals

from harness.worker.process.os_process import n_threads

WAY_OUT = (
    "allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
    "kernel.apparmor_restrict_unprivileged_userns), or run as root with CAP_SYS_ADMIN"
)
NOT_ASKED = "none was asked for"
"""Reason why a process has no namespace of its own if it has never called `isolate`."""

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_IFREQ = struct.Struct("16sH22x")


def isolate() -> str | None:
    """Move this process, and all that it starts later, into a network namespace of its own.

    Files, processes, users and ids are the same inside. Open sockets stay in the old namespace, so that a
    listening one can still be reached from outside.

    Returns:
        Reason why the process could not be moved; None if it was.
    """
    reason = refusal()
    if reason is None and n_threads() > 1:
        # Other threads would stay in the old namespace, with everything that they start.
        reason = "this process has more than one thread"
    if reason is None:
        _enter()
    return reason


def exposed_line(exposure: str) -> str:
    """Warning that the network can reach this command's servers.

    Args:
        exposure: reason why it can.
    """
    return (
        "exposed: others on the network can reach this command's servers, which have no network namespace of "
        f"their own: {exposure}; see docs/security.md"
    )


def refusal() -> str | None:
    """Reason why no namespace can be created, tested in a child process; None if one can."""
    if sys.platform != "linux":
        return f"network namespaces are of Linux, and this is {sys.platform}"
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        _try_and_exit(theirs)
    os.close(theirs)
    with open(ours, "rb") as pipe:  # noqa: PTH123  a descriptor
        reason = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"the kernel ends who asks for one ({Signals(-code).name})"
    return reason or None


def _try_and_exit(answer: int) -> None:
    try:
        _enter()
    except OSError as error:
        os.write(answer, _described(error).encode())
    finally:
        # Never return into the caller's code in the child.
        os._exit(0)


def _described(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "the kernel allows no more namespaces (user.max_user_namespaces, user.max_net_namespaces)"
    return f"the kernel refuses one ({error.strerror})"


def _enter() -> None:
    _unshare()
    _raise_loopback()


def _unshare() -> None:
    uid, gid = os.geteuid(), os.getegid()
    # Root without the capability gives up: in a user namespace, it could not access others' files.
    flags = _CLONE_NEWNET if uid == 0 else _CLONE_NEWUSER | _CLONE_NEWNET
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if flags & _CLONE_NEWUSER:
        Path("/proc/self/setgroups").write_text("deny")  # the condition for mapping a group without privilege
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = _IFREQ.pack(b"lo", 0)
        name, flags = _IFREQ.unpack(fcntl.ioctl(control, _SIOCGIFFLAGS, request))
        fcntl.ioctl(control, _SIOCSIFFLAGS, _IFREQ.pack(name, flags | _IFF_UP))
