"""A git repository of a test's own, whose commits each hold a few files."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

_AUTHOR = ("-c", "user.name=Nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false")


class Repository:
    """A repository in a folder, made empty."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True)
        self.root = root
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(self.root), *_AUTHOR, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def commit(self, subject: str, files: Mapping[str, str] | None = None) -> str:
        """Commit files; returns the commit."""
        for name, text in (files or {}).items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", subject)
        return self.git("rev-parse", "HEAD")

    @property
    def worktrees(self) -> int:
        """Number of worktrees, the repository itself among them."""
        return self.git("worktree", "list", "--porcelain").count("worktree ")
