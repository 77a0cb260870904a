"""Start-up time of help and lists, as seen by a person."""

import subprocess
import sys
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture


@pytest.mark.parametrize("arguments", [["--help"], ["list", "strategies"]], ids=" ".join)
def test_startup(benchmark: BenchmarkFixture, arguments: list[str]) -> None:
    program = Path(sys.executable).with_name("stratbench")

    def answer() -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run([program, *arguments], capture_output=True, check=True, timeout=60)

    done = benchmark.pedantic(answer, rounds=5, warmup_rounds=1)
    assert done.stdout
