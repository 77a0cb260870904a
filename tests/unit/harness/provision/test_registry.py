"""Tests for making providers by name."""

from harness.cluster import PROVIDERS
from harness.provision import local
from harness.provision.cluster import provider as cluster_provider
from harness.provision.docker import provider as docker_provider
from harness.provision.protocols import Provider
from harness.provision.registry import MODULES, provider_of


def test_both_tables_have_the_same_providers() -> None:
    assert list(MODULES) == list(PROVIDERS)


def test_every_provider_is_a_module_with_the_functions_of_the_protocol() -> None:
    providers: list[Provider] = [local, docker_provider, cluster_provider]
    assert [provider_of(name) for name in MODULES] == providers
