"""Containers that come and go 200 times, and what is left of them: nothing."""

from pathlib import Path

import pytest
from container_cycles import assert_nothing_is_left_of_cycles

pytestmark = [pytest.mark.docker, pytest.mark.ray, pytest.mark.timeout(4 * 3600)]

N_CYCLES = 200


def test_nothing_is_left_of_cycles(tmp_path: Path) -> None:
    assert_nothing_is_left_of_cycles(N_CYCLES, tmp_path / "logs")
