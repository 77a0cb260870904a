"""Facts about the code, machine and settings of a run."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

from harness.canonical import JsonValue, json_value
from harness.records.conditions import Machine, Provenance, Repository

# Settings that affect speed or results and cannot hold secrets.
ALLOWED_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "GRPC_VERBOSITY",
    "MKL_NUM_THREADS",
    "NCCL_DEBUG",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "TF_CPP_MIN_LOG_LEVEL",
    "TF_DETERMINISTIC_OPS",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_NUM_INTEROP_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "XLA_FLAGS",
)

_DISTRIBUTIONS = (
    "stratbench",
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-tpu",
    "keras",
    "numpy",
    "ray",
    "grpcio",
    "protobuf",
)
# Distribution → device of the lock file that installs it.
_TENSORFLOWS = {"tensorflow-tpu": "tpu", "tensorflow-cpu": "cpu", "tensorflow": "gpu"}
_OF_GPUS = "nvidia-ml-py"
_OF_DEVELOPERS = "pytest"  # workers' lock files leave it out
_GIT_TIMEOUT_S = 5.0
_FALLBACK_HZ = 6e9
_CPUS = Path("/sys/devices/system/cpu")


def allowed(environ: Mapping[str, str]) -> dict[str, str]:
    """Keep the variables that may be recorded."""
    return {name: environ[name] for name in ALLOWED_VARIABLES if name in environ}


def without_git(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment without variables such as GIT_DIR, which would make git use another repository."""
    return {name: value for name, value in environ.items() if not name.startswith("GIT_")}


def machine() -> Machine:
    """Read the facts about this host that stay the same between runs."""
    return Machine(
        cpu_model=_cpu_model(),
        n_cores=n_usable_cores(),
        memory_bytes=_memory_bytes(),
        kernel=platform.release() or None,
        architecture=platform.machine() or None,
        governor=_governor(),
        turbo=_turbo(),
        hyper_threads=_flag(_CPUS / "smt/active"),
    )


def provenance(*, source: Path | None = None) -> Provenance:
    """Read versions of the running code, and the git state of a source checkout.

    Args:
        source: root of the checkout; None for that of this package, if any.
    """
    root = source if source is not None else own_checkout()
    sha, dirty = _git(root)
    lock = lock_hash(followed_lock(), source=root)
    return Provenance(git_sha=sha, git_dirty=dirty, lock_hash=lock, versions=_versions())


def environment(environ: Mapping[str, str], *, command: str | None = None) -> dict[str, JsonValue]:
    """Collect the content of `environment.json`.

    Args:
        environ: the process environment; only allow-listed variables are kept.
        command: command line that repeats the run, without secrets; None if it was started otherwise.
    """
    facts, code = machine(), provenance()
    return {
        **({} if command is None else {"command": command}),
        "machine": {name: json_value(getattr(facts, name)) for name in Machine.__slots__},
        "provenance": {name: json_value(getattr(code, name)) for name in Provenance.__slots__},
        "environ": json_value(allowed(environ)),
    }


def clock_hz() -> float:
    """Highest clock of a core of this host, from the kernel, or else a value above any on the market."""
    try:
        return float(Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").read_text()) * 1000
    except (OSError, ValueError):
        return _FALLBACK_HZ


def n_usable_cores() -> int:
    """Count the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "implementation": sys.implementation.name}
    known = {name: version for name in _DISTRIBUTIONS if (version := _installed(name))}
    return versions | known


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@cache
def followed_lock() -> str | None:
    """Name of the lock file that this environment was installed from, by its distributions."""
    device = next((device for name, device in _TENSORFLOWS.items() if _installed(name)), None)
    if device == "gpu" and platform.machine() != "x86_64" and not _installed(_OF_GPUS):
        device = "cpu"  # other architectures have no tensorflow-cpu
    if device is None or _installed(_OF_DEVELOPERS):
        return device
    return f"worker-{device}"


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    models = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("model name")]
    return models[0] if models else None


def _governor() -> str | None:
    """Clock governor of all cores; None if there is none, or if cores differ."""
    try:
        governors = {path.read_text().strip() for path in _CPUS.glob("cpu[0-9]*/cpufreq/scaling_governor")}
    except OSError:
        return None
    return governors.pop() if len(governors) == 1 else None


def _turbo() -> bool | None:
    forbidden = _flag(_CPUS / "intel_pstate/no_turbo")
    return _flag(_CPUS / "cpufreq/boost") if forbidden is None else not forbidden


def _flag(path: Path) -> bool | None:
    try:
        return {"0": False, "1": True}.get(path.read_text().strip())
    except OSError:
        return None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def lock_hash(name: str | None, *, source: Path | None = None) -> str | None:
    """Hash of a lock file of a source checkout; None if it has no such file."""
    path = (source or own_checkout()) / ".ci" / "lock" / f"{name}.txt"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def checkout_of(file: Path) -> Path | None:
    """Folder of the git checkout of a file, which may no longer exist; None if there is none."""
    folder = next(folder for folder in file.resolve().parents if folder.is_dir())
    top = _git_output(folder, "rev-parse", "--show-toplevel")
    return Path(top) if top else None


def repository_of(file: Path) -> Repository | None:
    """Read the git repository of a user's file; None if there is none, or git does not answer."""
    root = checkout_of(file)
    if root is None:
        return None
    # Folders of runs and stores are never committed, and are no changes of the code.
    known = _git_output(root, "status", "--porcelain", "--untracked-files=no")
    own = _git_output(root, "status", "--porcelain", "--ignored", "--", str(file.resolve()))
    return Repository(
        name=root.name,
        git_sha=_git_output(root, "rev-parse", "--verify", "HEAD") or None,
        git_dirty=None if known is None or own is None else bool(known or own),
    )


def own_checkout() -> Path:
    """Folder of this code, which may be a git checkout."""
    return Path(__file__).resolve().parents[1]


def commits_between(root: Path, earlier: str, later: str) -> tuple[str, ...]:
    """One line for each commit after `earlier` up to `later`, newest first.

    Returns:
        Lines; none if the folder is not a checkout with both commits.
    """
    # A name of a commit must not be taken for an option: git would write to `--output=FILE`.
    log = _git_output(root, "log", "--oneline", "--end-of-options", f"{earlier}..{later}", "--")
    return tuple(log.splitlines()) if log else ()


def _git(root: Path) -> tuple[str | None, bool | None]:
    # An installed package may be inside another repository; only its own root counts.
    if not (root / ".git").exists():
        return None, None
    sha = _git_output(root, "rev-parse", "--verify", "HEAD")
    changes = _git_output(root, "status", "--porcelain")
    return sha or None, None if changes is None else bool(changes)


def _git_output(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(root), *arguments],
            env=without_git(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
