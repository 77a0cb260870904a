"""Names on the page on running exist: commands, options, keys and variables."""

import re

import yaml
from pages import ROOT

from harness.cluster import PROVIDERS
from harness.experiment.cluster import Cluster

PAGE = (ROOT / "docs" / "running.md").read_text()


def test_its_providers_and_keys_are_those_there_are() -> None:
    assert set(re.findall(r"\| `(\w+)`(?: \(default\))? \|", PAGE)) == set(PROVIDERS)
    assert set(re.findall(r"`cluster\.(\w+)`", PAGE)) <= {
        Cluster.key_of(name) for name in Cluster.model_fields
    }


def test_variables_and_services_are_those_of_the_compose_file() -> None:
    text = (ROOT / "compose.yaml").read_text()
    for name in set(re.findall(r"STRATBENCH_(?!CLUSTER)\w+", PAGE)):
        assert f"${{{name}:-" in text
    assert {"bench", "grafana", "worker"} <= set(yaml.safe_load(text)["services"])
