"""Options and markers of all tests: what a test needs, and what its absence means."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# A machine that is busy with something else makes no law wrong.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

# Before any test imports TensorFlow: its start-up notices would bury a failing test's own output.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# A server has 64 queues of messages unless told, with a thread for each, and ends with its process only.
os.environ.setdefault("TF_GRPC_WORKER_CACHE_QUEUES", "2")
# Ray reads it once, when it is first imported, which a test may do before another starts an instance.
os.environ.setdefault("RAY_AUTH_MODE", "token")

# In the background of a shell this process ignores Ctrl-C, under nohup hang-ups; so would what tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A process keeps thousands of graphs, which a collection by the usual limits would look through all the time.
gc.set_threshold(50_000, 20, 100)

_LONG = (
    "benchmarks/",
    "browser/",
    "contract/test_batch_statistics.py",
    "contract/test_bounds.py",
    "contract/test_compiled_replicas.py",
    "contract/test_compressors.py",
    "contract/test_equal_rows.py",
    "contract/test_keras_models.py",
    "contract/test_model_types.py",
    "contract/test_mutations.py",
    "contract/test_ps_modes.py",
    "contract/test_real_models.py",
    "contract/test_resharded_loops.py",
    "contract/test_robust.py",
    "contract/test_rows_in_ring.py",
    "contract/test_sequences.py",
    "contract/test_shrink.py",
    "contract/test_standard_workloads.py",
    "contract/test_users_step.py",
    "in_process/test_workload_sizes.py",
    "in_process/test_workloads.py",
    "integration/",
)
"""Folders and files that `make test-more` runs, most of them minutes long; all others are for `make test`."""
_SHORT = ("integration/test_local_provider.py", "integration/test_run.py")
"""Of these folders, what `make test` runs all the same."""
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_HEAD_IMAGE = "stratbench-head:dev"
_PROBE_TIMEOUT_S = 60.0


@pytest.fixture(autouse=True, scope="module")
def _collects_what_stays_once() -> Iterator[None]:
    yield
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("stratbench")
    group.addoption(
        "--require",
        metavar="A,B",
        default="",
        help="of docker, compose, browser, gpu, prometheus: fail, not skip, what needs one that is not there",
    )
    group.addoption(
        "--all-cases", action="store_true", help="run the whole contract matrix, not the chosen cases alone"
    )
    group.addoption(
        "--endings",
        type=int,
        metavar="N",
        default=40,
        help="of soak: kill, and interrupt, a run N times each",
    )


def pytest_configure(config: pytest.Config) -> None:
    unknown = sorted(_required(config) - set(_PROBES))
    if unknown:
        known = ", ".join(sorted(_PROBES))
        raise pytest.UsageError(f"--require: must be of {known}, got {', '.join(unknown)}")


@pytest.hookimpl(tryfirst=True)  # before `-m` takes its choice
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    required = _required(config)
    for item in items:
        path = item.path.relative_to(Path(__file__).parent).as_posix()
        if path.startswith(_LONG) and path not in _SHORT:
            item.add_marker("more")
        for need in _PROBES:
            if item.get_closest_marker(need) is None or need in required:
                continue
            absent = _absence(need)
            if absent:
                item.add_marker(pytest.mark.skip(reason=absent))


def pytest_runtest_setup(item: pytest.Item) -> None:
    for need in _required(item.config):
        if item.get_closest_marker(need) is not None:
            absent = _absence(need)
            if absent:
                pytest.fail(f"--require {need}: {absent}", pytrace=False)


@pytest.fixture(scope="session")
def all_cases(request: pytest.FixtureRequest) -> bool:
    """Return True if the whole contract matrix was requested."""
    return bool(request.config.getoption("--all-cases"))


@pytest.fixture(scope="session")
def browser() -> Path:
    """The headless browser's program; for tests marked `browser`."""
    browser = _find_browser()
    assert browser is not None, "a test that uses this fixture must be marked browser"
    return browser


@pytest.fixture(scope="module")
def chromium(browser: Path) -> Iterator[Browser]:
    """The running browser; for tests marked `browser`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for what tests make once and read many times: captures, references."""
    return tmp_path_factory.mktemp("shared")


def _required(config: pytest.Config) -> set[str]:
    return {need.strip() for need in str(config.getoption("--require")).split(",") if need.strip()}


@cache
def _absence(need: str) -> str | None:
    return _PROBES[need]()


def _find_browser() -> Path | None:
    match = next((path for path in map(shutil.which, _BROWSERS) if path), None)
    return Path(match) if match else None


def _browser_absence() -> str | None:
    return None if _find_browser() else f"no browser: install one of {', '.join(_BROWSERS)}"


def _prometheus_absence() -> str | None:
    from prometheus_programs import PROGRAMS, program

    missing = [name for name in PROGRAMS if program(name) is None]
    return f"{' and '.join(missing)} not found: run `.ci/prometheus`" if missing else None


def _docker_absence() -> str | None:
    from harness.provision.docker.engine import IMAGE

    return _image_absence(IMAGE, "make image")


def _compose_absence() -> str | None:
    if shutil.which("docker-compose") is None:
        return "docker-compose is not installed"
    return _docker_absence() or _image_absence(_HEAD_IMAGE, "make image TARGET=head")


def _image_absence(image: str, made_by: str) -> str | None:
    import docker
    from docker.errors import DockerException, ImageNotFound

    try:
        client = docker.from_env(timeout=int(_PROBE_TIMEOUT_S))
    except DockerException:
        return "no Docker engine answers here"
    try:
        client.ping()
        client.images.get(image)
    except ImageNotFound:
        return f"no image {image}: run `{made_by}`"
    except (DockerException, OSError):
        return "the Docker engine does not answer"
    finally:
        client.close()
    return None


def _gpu_absence() -> str | None:
    from harness.provision.accelerators import host_devices, lack, lack_of_tensorflow

    lacking = lack(host_devices(), "gpu") or lack_of_tensorflow("gpu")
    return None if lacking is None else lacking.problem


_PROBES: Mapping[str, Callable[[], str | None]] = {
    "browser": _browser_absence,
    "compose": _compose_absence,
    "docker": _docker_absence,
    "gpu": _gpu_absence,
    "prometheus": _prometheus_absence,
}
