"""Stages of the Dockerfile that `make image` builds for each target, and the images that it leaves."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
WORKER = ["builder", "environment-cpu", "project", "runtime"]

# Answers as the classic builder does, and notes what it is asked; a build named in $FAILING fails.
DOCKER = r"""#!/usr/bin/env bash
echo "$*" >>"$TOLD"
case "$1 $2" in
  "version "*) echo 20.10 ;;
  "buildx "*) exit 1 ;;
  "image inspect")
    case "$4" in
      *Id*) cat "$IMAGES/${5//:/_}" 2>/dev/null || exit 1 ;;
      *RepoTags*) grep -qs "$5" "$IMAGES"/* && echo 1 || echo 0 ;;
      *Size*) echo 1000000 ;;
    esac ;;
  "build --force-rm")
    cat >>"$TOLD"
    if [ "$4" = "$FAILING" ]; then
      printf ' ---> 0123456789ab\nStep 2/2 : RUN y\n ---> feedfacecafe\nreturned a non-zero code\n'
      exit 1
    fi
    n=$(($(cat "$IMAGES/.n" 2>/dev/null || echo 0) + 1)); echo "$n" >"$IMAGES/.n"
    echo "sha256:image$n" >"$IMAGES/${4//:/_}" ;;
esac
"""


def names(dockerfile: str) -> list[str]:
    return re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.MULTILINE)


def needed_stages(target: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, ROOT / "harness/provision/image/stages", ROOT / "Dockerfile", target],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("prometheus", ["prometheus"]),
        ("cpu", [*WORKER, "cpu"]),
        ("head", [*WORKER, "cpu", "driver", "head"]),
        ("launcher", [*WORKER, "cpu", "driver", "head", "clouds", "launcher"]),
        ("gpu", [*WORKER, "environment-gpu", "gpu"]),
        ("tpu", [*WORKER, "environment-tpu", "tpu"]),
        ("tpu-head", [*WORKER, "driver", "environment-tpu", "tpu", "tpu-head"]),
    ],
)
def test_a_target_is_built_from_what_it_needs_alone(target: str, expected: list[str]) -> None:
    stages = needed_stages(target).stdout
    assert names(stages) == expected
    assert stages.startswith(DOCKERFILE[: DOCKERFILE.index("FROM ")])
    assert set(stages.splitlines()) <= set(DOCKERFILE.splitlines())


def test_a_target_that_is_no_stage_is_refused() -> None:
    refused = needed_stages("cpus")
    assert refused.returncode == 1
    assert re.match(r"TARGET must be a stage \(builder, .*prometheus.*got 'cpus'", refused.stderr)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Surroundings in which `docker` is the one above."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "images").mkdir()
    docker = tmp_path / "bin" / "docker"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    return {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "TOLD": str(tmp_path / "told"),
        "IMAGES": str(tmp_path / "images"),
        "FAILING": "",
        "PYTHON": sys.executable,
    }


def build(
    environ: dict[str, str], target: str, **more: str
) -> tuple["subprocess.CompletedProcess[str]", str]:
    """Output of the script, and the arguments that Docker gets."""
    path = Path(environ["TOLD"])
    path.write_text("")
    done = subprocess.run(
        [ROOT / "harness/provision/image/build", target],
        env=environ | more,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done, path.read_text()


def removed(message: str) -> list[str]:
    return re.findall(r"^image rm (\S+)$", message, re.MULTILINE)


def test_prometheus_is_one_build_of_one_stage(environ: dict[str, str]) -> None:
    done, message = build(environ, "prometheus")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^build .*--tag (\S+)", message, re.MULTILINE) == ["stratbench-prometheus:dev"]
    assert names(message) == ["prometheus"]
    assert removed(message) == []


def test_every_stage_has_a_tag_and_what_a_tag_is_taken_from_goes(environ: dict[str, str]) -> None:
    tags = [*(f"stratbench-stage:{stage}" for stage in WORKER), "mine:1"]
    done, message = build(environ, "cpu", IMAGE="mine:1")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^build .*--tag (\S+)", message, re.MULTILINE) == tags
    assert removed(message) == []
    done, message = build(environ, "cpu", IMAGE="mine:1")
    assert done.returncode == 0, done.stderr
    assert removed(message) == [f"sha256:image{n}" for n in range(1, 6)]


def test_a_build_that_fails_leaves_no_untagged_image_and_says_why(environ: dict[str, str]) -> None:
    done, message = build(environ, "cpu", FAILING="stratbench-stage:environment-cpu")
    assert done.returncode == 1
    assert "make image: building stratbench-stage:environment-cpu failed. It ended with:" in done.stderr
    assert "returned a non-zero code" in done.stderr
    assert removed(message) == ["feedfacecafe"]
    assert "stratbench-worker:dev" not in message
