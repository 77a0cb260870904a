"""Names on the page on TPUs exist: commands, options, keys, experiments and paths."""

import re

import pytest
from pages import ROOT, commands, refuse_unknown_options

from harness.experiment.cluster import Cluster
from harness.experiment.load import load_experiment

PAGE = (ROOT / "docs" / "tpu.md").read_text()


@pytest.mark.parametrize("command", sorted(set(commands(PAGE))))
def test_every_command_and_option_exists(command: str) -> None:
    refuse_unknown_options(command)


def test_its_keys_and_paths_are_those_there_are() -> None:
    assert set(re.findall(r"`cluster\.(\w+)", PAGE)) <= {
        Cluster.key_of(name) for name in Cluster.model_fields
    }
    for path in re.findall(r"`(harness/[\w/.-]+)`", PAGE):
        assert (ROOT / path).exists()


def test_the_slice_and_the_repeats_that_it_tells_of_are_those_of_the_experiment() -> None:
    from harness.experiment.cases import expand

    spec = load_experiment("tpu-pod")
    assert spec.cluster.slice is not None
    cases = expand(spec)
    assert not any(case.chosen.strategy.refuses_to_run("tpu", case.shape.workers) for case in cases)
    assert f"has {len(cases) * spec.measure.repeats} repeats" in PAGE
    assert f"{spec.cluster.slice.accelerator} slice of one host, {spec.cluster.slice.topology}" in PAGE
