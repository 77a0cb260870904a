"""Containers that come and go; `make soak` lets them do so for longer."""

from pathlib import Path

import pytest
from container_cycles import assert_nothing_is_left_of_cycles

pytestmark = [pytest.mark.docker, pytest.mark.ray]


def test_nothing_is_left_of_a_few_cycles(tmp_path: Path) -> None:
    assert_nothing_is_left_of_cycles(3, tmp_path / "logs", n_workers=1)
