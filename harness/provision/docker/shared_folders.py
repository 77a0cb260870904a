"""Folders that driver and containers both write to, with different users: by a group that both belong to."""

import os
from pathlib import Path

CONTAINER_UID = 10001


def shared_group() -> int:
    """The group: this user's own, which containers join; theirs, where the driver may give files away."""
    return CONTAINER_UID if os.geteuid() == 0 else os.getegid()


def share(folder: Path) -> None:
    """Let containers write into a folder, and the driver remove what they write.

    What is made in it inherits the group, and containers run with a mask that leaves the group its rights.
    """
    os.chown(folder, -1, shared_group())
    folder.chmod(0o2775)


def share_secret(path: Path) -> None:
    """Let containers read a file that nobody else may."""
    os.chown(path, -1, shared_group())
    path.chmod(0o440)
