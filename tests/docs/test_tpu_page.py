"""Names on the page on TPUs exist: commands, options, keys, experiments and paths."""

import re

from pages import ROOT, commands

from harness.experiment.cluster import Cluster
from harness.experiment.load import load_experiment
from strategies.tpu_slices import parse_slice

PAGE = (ROOT / "docs" / "tpu.md").read_text()


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


def test_a_slice_has_a_device_for_each_replica() -> None:
    output = commands((ROOT / "docs" / "tpu-slices.md").read_text())
    assert output
    for command in output:
        (workers,), (replicas,), (name,) = (
            re.findall(rf"--{option} (\S+)", command) for option in ("workers", "replicas", "slice")
        )
        parse_slice(name).require_replicas(int(workers) * int(replicas))
