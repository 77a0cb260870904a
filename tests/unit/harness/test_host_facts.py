import hashlib
import json
import os
import platform
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from git_repository import Repository

from harness import host_facts
from harness.host_facts import allowed, commits_between, environment, machine, provenance, repository_of
from harness.records import conditions as facts


def test_only_listed_variables_are_recorded() -> None:
    variables = {"OMP_NUM_THREADS": "2", "AWS_SECRET_ACCESS_KEY": "hidden", "HOME": "/home/me"}
    assert allowed(variables) == {"OMP_NUM_THREADS": "2"}
    assert "hidden" not in json.dumps(environment(variables))


def test_the_machine_is_described() -> None:
    facts = machine()
    assert facts.n_cores is not None
    assert facts.n_cores >= 1
    assert facts.memory_bytes is not None
    assert facts.memory_bytes > 2**28


def test_settings_that_change_the_clock_are_read_where_all_cores_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")

    monkeypatch.setattr(host_facts, "_CPUS", tmp_path)
    facts = machine()
    assert (facts.governor, facts.turbo, facts.hyper_threads) == (None, None, None)
    put("cpu0/cpufreq/scaling_governor", "powersave")
    put("cpu1/cpufreq/scaling_governor", "powersave")
    put("intel_pstate/no_turbo", "1")
    put("cpufreq/boost", "1")
    put("smt/active", "1")
    facts = machine()
    assert (facts.governor, facts.turbo, facts.hyper_threads) == ("powersave", False, True)
    put("cpu1/cpufreq/scaling_governor", "performance")
    (tmp_path / "intel_pstate/no_turbo").unlink()
    facts = machine()
    assert (facts.governor, facts.turbo) == (None, True)


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
    code = provenance(source=tmp_path)
    assert (code.git_sha, code.git_dirty, code.lock_hash) == (None, None, None)
    assert "python" in code.versions


@pytest.mark.parametrize(
    ("installed", "architecture", "lock"),
    [
        ({"tensorflow-cpu", "pytest"}, "x86_64", "cpu"),
        ({"tensorflow", "nvidia-ml-py", "pytest"}, "x86_64", "gpu"),
        ({"tensorflow", "pytest"}, "x86_64", "gpu"),
        ({"tensorflow", "pytest"}, "aarch64", "cpu"),
        ({"tensorflow", "nvidia-ml-py", "pytest"}, "aarch64", "gpu"),
        ({"tensorflow-cpu", "nvidia-ml-py"}, "x86_64", "worker-cpu"),
        ({"tensorflow", "nvidia-ml-py"}, "x86_64", "worker-gpu"),
        ({"tensorflow-tpu"}, "x86_64", "worker-tpu"),
        ({"pytest"}, "x86_64", None),
    ],
)
def test_the_lock_file_is_that_of_the_installed_distributions(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    installed: set[str],
    architecture: str,
    lock: str | None,
) -> None:
    folder = tmp_path / ".ci" / "lock"
    folder.mkdir(parents=True)
    hashes = {}
    for name in ("cpu", "gpu", "worker-cpu", "worker-gpu", "worker-tpu"):
        (folder / f"{name}.txt").write_text(name)
        hashes[name] = hashlib.sha256(name.encode()).hexdigest()
    monkeypatch.setattr(host_facts, "_installed", lambda name: "1" if name in installed else None)
    monkeypatch.setattr(platform, "machine", lambda: architecture)
    host_facts.followed_lock.cache_clear()
    try:
        assert provenance(source=tmp_path).lock_hash == (None if lock is None else hashes[lock])
    finally:
        host_facts.followed_lock.cache_clear()


def test_a_users_file_is_of_the_repository_that_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(tmp_path / "models")
    sha = repository.commit("first", {"nets/net.py": "1", "other.py": "1"})
    file = repository.root / "nets" / "net.py"
    clean = facts.Repository(name="models", git_sha=sha, git_dirty=False)
    assert repository_of(file) == clean
    # A run folder inside of it is no change of the code, and a hook's variables lead nowhere else.
    (repository.root / "runs").mkdir()
    (repository.root / "runs" / "results.jsonl").touch()
    monkeypatch.setenv("GIT_DIR", str(Repository(tmp_path / "elsewhere").root / ".git"))
    assert repository_of(file) == clean
    (repository.root / "other.py").write_text("2")
    assert repository_of(file) == replace(clean, git_dirty=True)
    repository.commit("second")
    mine = repository.root / "nets" / "mine.py"
    mine.touch()
    untracked = repository_of(mine)
    assert untracked is not None
    assert untracked.git_dirty is True
    assert repository_of(tmp_path / "alone.py") is None


def test_looking_at_a_repository_writes_nothing_in_it(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "models")
    repository.commit("first", {"net.py": "1"})
    file, index = repository.root / "net.py", repository.root / ".git" / "index"
    # Other times than those in the index, which git would refresh.
    os.utime(file, (1, 1))
    before = index.read_bytes()
    result = repository_of(file)
    assert result is not None
    assert result.git_dirty is False
    assert index.read_bytes() == before


def test_what_a_history_calls_a_commit_is_no_option_of_git(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "checkout")
    first, second = repository.commit("first"), repository.commit("second")
    (line,) = commits_between(repository.root, first, second)
    assert line.endswith(" second")
    assert commits_between(repository.root, f"--output={tmp_path}/", second) == ()
    assert list(tmp_path.iterdir()) == [repository.root]
