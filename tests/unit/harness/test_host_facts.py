import json
import subprocess
from pathlib import Path

from harness.host_facts import allowed, environment, machine, provenance


def test_only_listed_variables_are_recorded() -> None:
    given = {"OMP_NUM_THREADS": "2", "AWS_SECRET_ACCESS_KEY": "hidden", "HOME": "/home/me"}
    assert allowed(given) == {"OMP_NUM_THREADS": "2"}
    assert "hidden" not in json.dumps(environment(given))


def test_the_machine_is_described() -> None:
    facts = machine()
    assert facts.n_cores is not None
    assert facts.n_cores >= 1
    assert facts.memory_bytes is not None
    assert facts.memory_bytes > 2**28


def test_a_checkout_tells_its_commit_and_whether_it_is_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "--quiet")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "--quiet", "-m", "first")
    clean = provenance(source=tmp_path)
    assert (clean.git_sha, clean.git_dirty) == (git("rev-parse", "HEAD"), False)
    (tmp_path / "a").write_text("2")
    assert provenance(source=tmp_path).git_dirty is True


def test_without_a_checkout_there_is_no_commit(tmp_path: Path) -> None:
    found = provenance(source=tmp_path)
    assert (found.git_sha, found.git_dirty, found.lock_hash) == (None, None, None)
    assert "python" in found.versions
