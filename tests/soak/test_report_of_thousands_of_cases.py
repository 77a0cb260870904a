"""Cost of a report of two thousand cases in a process of its own: seconds to read, memory to hold."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from synthetic_many_cases import write_many_cases

import reports

MOST_MEMORY_BYTES = 1e9


@pytest.fixture(scope="module")
def many_cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two thousand cases, three repeats of each with its record and its files."""
    path = tmp_path_factory.mktemp("many-cases") / "run"
    return write_many_cases(path, n_shapes=50, n_strategies=40, n_repeats=3)


_FRESH = """
import json, pathlib, resource, sys, time
import reports
text = reports.render([pathlib.Path(sys.argv[1])], sys.argv[2])
most_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"cpu_s": time.process_time(), "most_bytes": most_bytes, "letters": len(text)}))
"""


@pytest.mark.parametrize("format", reports.FORMATS)
def test_report_of_thousands_of_cases(
    format: str,  # noqa: A002 - as the command line calls it
    many_cases: Path,
    benchmark: BenchmarkFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fresh() -> dict[str, float]:
        command = [sys.executable, "-c", _FRESH, str(many_cases), format]
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
        return json.loads(answer.stdout)  # type: ignore[no-any-return]

    cost = benchmark.pedantic(fresh, rounds=1)
    benchmark.extra_info.update(cost)
    with capsys.disabled():
        sys.stdout.write(f"\nreport {format} of 6,000 records: {cost['cpu_s']:.1f} s, ")
        sys.stdout.write(f"{cost['most_bytes'] / 1e9:.2f} GB, {cost['letters'] / 1e6:.1f} MB of text\n")
    assert cost["most_bytes"] < MOST_MEMORY_BYTES
