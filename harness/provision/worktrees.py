"""Git worktrees in our temporary folders, and their entries in a user's repository.

Git keeps an entry for each worktree, `.git/worktrees/NAME`, which stays when the worktree is removed.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

_NAME = re.compile(r"worktree-[0-9a-f]{16}")
_LINK = "gitdir: "


def new_worktree(folder: Path) -> Path:
    """Path for a worktree in a temporary folder; git names its entry after it."""
    return folder / f"worktree-{secrets.token_hex(8)}"


def forget_worktrees(folder: Path) -> None:
    """Remove the entries of all worktrees in a temporary folder that is about to be removed."""
    for link in folder.glob("worktree-*/.git"):
        entry = Path(_read(link).removeprefix(_LINK))
        if _worktree_of(entry) == link.parent.resolve():
            shutil.rmtree(entry, ignore_errors=True)


def dead_entries(git_folder: Path, *, prefix: str) -> Iterator[Path]:
    """Entries of a repository whose worktrees were removed with their temporary folders.

    Args:
        git_folder: git folder of the repository, which its worktrees share.
        prefix: prefix of temporary folders' names.
    """
    for entry in sorted((git_folder / "worktrees").glob("worktree-*")):
        worktree = _worktree_of(entry)
        if worktree is not None and worktree.parent.name.startswith(prefix) and not worktree.parent.exists():
            yield entry


def _worktree_of(entry: Path) -> Path | None:
    """Worktree of an entry, if it is one of ours, else None."""
    is_ours = _NAME.fullmatch(entry.name) is not None and entry.parent.name == "worktrees"
    link = Path(_read(entry / "gitdir")) if is_ours else Path()
    return link.parent if link.parent.name == entry.name else None


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, ValueError):
        return ""
