"""Time of `verify` of a real model, compared with `plan`, which only captures it."""

import json
import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(1800)]

MODEL = "keras:MobileNetV2:input=96,classes=10"
ROUNDS = 3
LOG = logging.getLogger(__name__)
"""Shown as it goes on by `--log-cli-level=info`."""


def test_verify_of_mobilenet_beside_its_capture() -> None:
    for _ in range(ROUNDS):
        captured_s, _ = timed("plan")
        verified_s, verdict = timed("verify")
        LOG.info("plan %.1f s, verify %.1f s, %.2f times", captured_s, verified_s, verified_s / captured_s)
        assert verdict["equivalent"] is True
        assert verdict["separable"] is False


def timed(command: str) -> tuple[float, dict[str, object]]:
    program = Path(sys.executable).with_name("stratbench")
    start = time.perf_counter()
    done = subprocess.run(
        [program, command, MODEL, "--strategy", "all-reduce", "--json"],
        capture_output=True,
        check=True,
        timeout=600,
    )
    return time.perf_counter() - start, json.loads(done.stdout)
