"""References of an experiment to files of a checkout, in any worktree of it."""

from pathlib import Path

import pytest

from harness.bisection.single_case import placed_in
from harness.experiment.load import resolve
from harness.experiment.model import Experiment

BUILDER = """
class Mine:
    name = "mine"
    strategy_class = "exact"
    params = ()

    def layout(self, step, topology, params):
        return []
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("code/nets/net.py", "code/mine.py", "elsewhere/theirs.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(BUILDER)
    return tmp_path.resolve() / "code"


def spec(workload: str, *strategies: str) -> Experiment:
    return resolve({"name": "x", "workloads": [workload], "strategies": list(strategies)})


@pytest.mark.parametrize(
    ("folder", "typed", "start", "placed"),
    [
        ("code", "nets/net.py", ".", "nets/net.py"),
        ("code/nets", "./net.py", "nets", "net.py"),
        ("code/nets", "../mine.py", "nets", "../mine.py"),
        ("elsewhere", "../code/nets/net.py", ".", "nets/net.py"),
    ],
)
def test_files_of_the_checkout_are_named_from_where_runs_start(
    root: Path, monkeypatch: pytest.MonkeyPatch, folder: str, typed: str, start: str, placed: str
) -> None:
    monkeypatch.chdir(root.parent / folder)
    for reference in (typed, str(Path(typed).resolve())):
        experiment = placed_in(root, spec(f"{reference}:net", "single"), working_directory=Path.cwd())
        assert experiment.start == Path(start)
        assert [str(each) for each in experiment.spec.workloads] == [f"{placed}:net"]


def test_strategies_of_the_checkout_move_with_it_and_others_stay(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    both = spec("nets/net.py:net", "mine.py:Mine", "../elsewhere/theirs.py:Mine", "ps")
    placed = placed_in(root, both, working_directory=Path.cwd()).spec
    names = ["mine.py:Mine", f"{root.parent}/elsewhere/theirs.py:Mine", "ps"]
    assert [each.name for each in placed.strategies] == names
    assert placed.baseline == placed.strategies[0]


def test_an_experiment_without_files_of_the_checkout_is_run_from_here(root: Path) -> None:
    shipped = spec("digits-cnn", "ps")
    placed = placed_in(root, shipped, working_directory=root)
    assert (placed.spec, placed.start) == (shipped, None)
