"""Examples of the page on checkpoints work; its Python is run by the contract's tests of checkpoints."""

import yaml
from pages import ROOT, blocks

from harness.experiment.load import resolve

PAGE = (ROOT / "docs" / "checkpoints.md").read_text()


def test_the_section_of_an_experiment_is_understood() -> None:
    (output,) = blocks(PAGE, "yaml")
    experiment = {"name": "x", "workloads": ["wide-mlp"], "strategies": ["ps"]}
    assert resolve({**experiment, **yaml.safe_load(output)}).checkpoint.save
