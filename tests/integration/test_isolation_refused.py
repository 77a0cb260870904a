"""Commands where the kernel allows no network namespace: what they say, and that they leave nothing."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from watched_run import records, watched

from harness.provision import network_namespace

# A user namespace has limits of its own, which bind nobody outside of it.
NO_MORE = ("unshare", "--user", "--map-root-user", "sh", "-c")
LIMIT = "echo 0 > /proc/sys/user/max_net_namespaces"
RUN = ["run", "quickstart", "--workloads", "linear-regression", "--strategies", "single", "--steps", "3"]


@pytest.fixture(scope="module")
def refused() -> list[str]:
    """Command prefix under which isolation is refused."""
    if network_namespace.refusal() is not None:
        return []
    if shutil.which("unshare") is None:
        pytest.skip("no `unshare` to limit namespaces with")
    tried = subprocess.run([*NO_MORE, LIMIT], capture_output=True, text=True, check=False, timeout=60)
    if tried.returncode != 0:
        pytest.skip(f"namespaces cannot be limited: {tried.stderr.strip()}")
    return [*NO_MORE, f'{LIMIT} && exec "$@"', "sh"]


def test_a_command_that_requires_isolation_stops_before_it_starts_anything(
    refused: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for command in ([*RUN, "--out", str(out)], ["verify", "linear-regression", "--strategy", "ps"]):
        with watched([*command, "--require-isolation"], tmp_path, by=refused) as stopped:
            status, output, errors = stopped.finish()
            assert stopped.leftovers() == []
        assert (status, output, errors.count("\n")) == (3, "", 1)
        assert errors.startswith("stratbench: require-isolation: cannot create a network namespace: ")
    assert not out.exists()


@pytest.mark.ray
@pytest.mark.tensorflow
def test_any_other_runs_exposed_and_says_so(refused: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--warmup", "1", "--repeats", "1", "--out", str(out), "--json"]
    options += ["--set", "measure.trace=false", "--set", "measure.window_s=0"]
    with watched([*RUN, *options], tmp_path, by=refused) as run:
        status, output, errors = run.finish()
    assert (status, json.loads(output)["cases"]["ok"]) == (0, 1), errors
    (line,) = errors.splitlines()
    assert line.startswith("exposed: others on the network can reach this command's servers")
    (record,) = records(out)
    assert record["exposed"] is True
    assert record["interface_bytes_per_step"] is None
    assert line in record["notes"]
