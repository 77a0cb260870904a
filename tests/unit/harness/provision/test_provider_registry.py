"""Tests for making providers by name."""

import pytest

from harness.cluster.providers import PROVIDERS
from harness.provision.registry import provider_of


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_provider_in_the_table_can_be_made(name: str) -> None:
    assert provider_of(name, None).name == name
