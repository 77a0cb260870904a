"""Tests for making providers by name."""

import pytest

from harness.cluster import PROVIDERS
from harness.provision.protocols import USUAL_START
from harness.provision.registry import MAKERS


def test_both_tables_have_the_same_providers() -> None:
    assert list(MAKERS) == list(PROVIDERS)


@pytest.mark.parametrize("name", MAKERS)
def test_every_provider_can_be_made(name: str) -> None:
    assert MAKERS[name](None, USUAL_START).name == name
