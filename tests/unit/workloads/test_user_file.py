"""A user's workload by path: how it is found, and every way in which the file can be wrong."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from workloads import WorkloadError
from workloads.registry import check, resolve

GOOD = """
from dataclasses import dataclass
from beside import DEFAULT_NAME

@dataclass
class Mine:
    batch_size: int = 8
    name: str = DEFAULT_NAME
    flops_per_example: float | None = None

    def train_step(self): ...
    def dataset(self, seed): ...

def small(*, batch_size=2, units=4):
    return Mine(batch_size=batch_size, name=f"small-{units}")

def needy(units):
    return Mine()

def anything(**params):
    return Mine(name="-".join(sorted(params)))

def broken():
    raise ValueError("the data\\nis gone")

def leaves():
    raise SystemExit(3)

def nothing():
    pass

def a_class():
    return Mine

def unnamed():
    class Unnamed:
        batch_size = 1
    return Unnamed()

def number():
    return 7

def stepless():
    made = Mine()
    made.train_step = 7
    return made

def wrong(**values):
    made = Mine()
    vars(made).update(values)
    return made

def seedless():
    made = Mine()
    made.dataset = lambda: None
    return made

class Callable(Mine):
    def __call__(self, examples): ...
    def __repr__(self): return "<mine>"

constant = 12
unset = None
WORKLOAD = Callable()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    modules = set(sys.modules)
    (tmp_path / "beside.py").write_text("DEFAULT_NAME = 'mine'\n")
    (tmp_path / "mine.py").write_text(GOOD)
    (tmp_path / "dotted.py").write_text("from .mine import small\n")
    yield tmp_path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def message(reference: str, params: dict[str, object] | None = None) -> str:
    with pytest.raises(WorkloadError) as caught:
        resolve(reference, params or {})
    assert "\n" not in str(caught.value)
    assert caught.value.field is not None
    return str(caught.value)


def test_a_class_and_a_function_are_factories_and_get_the_parameters(folder: Path) -> None:
    assert resolve("mine.py:Mine", {}).name == "mine"
    assert resolve(f"{folder}/mine.py:Mine", {"batch-size": 3}).batch_size == 3
    assert resolve("./mine.py:small", {"units": 9}).name == "small-9"
    assert resolve("mine.py:anything", {"b": 1, "a": 2}).name == "a-b"


def test_an_edited_file_is_read_again(folder: Path) -> None:
    (folder / "mine.py").write_text(GOOD.replace("small-", "tiny-"))
    assert resolve("mine.py:small", {}).name == "tiny-4"


def test_two_files_of_one_name_do_not_mix(folder: Path) -> None:
    (folder / "other").mkdir()
    (folder / "other" / "beside_other.py").write_text("DEFAULT_NAME = 'mine'\n")
    (folder / "other" / "mine.py").write_text(
        GOOD.replace("small-", "other-").replace("from beside ", "from beside_other ")
    )
    assert resolve("other/mine.py:small", {}).name == "other-4"
    assert resolve("mine.py:small", {}).name == "small-4"


@pytest.mark.parametrize("theirs", ["beside.py", "beside/__init__.py", "beside/part.py"])
def test_modules_of_one_name_beside_two_files_are_refused(folder: Path, theirs: str) -> None:
    """Python would give the second file those of the first."""
    path = folder / "other" / theirs
    path.parent.mkdir(parents=True)
    path.write_text("DEFAULT_NAME = 'other'\n")
    (folder / "other" / "mine.py").write_text(GOOD)
    assert resolve("mine.py:Mine", {}).name == "mine"
    assert message("other/mine.py:Mine") == (
        "workload file other/mine.py must have modules of its own beside it, got 'beside', which stands "
        f"for that in {folder} already; rename one of the two"
    )


def test_attributes_may_be_computed_by_name(folder: Path) -> None:
    (folder / "lazy.py").write_text(
        "class Lazy:\n"
        "    def __getattr__(self, name):\n"
        "        return {'name': 'lazy', 'batch_size': 4, 'flops_per_example': None}.get(name, print)\n"
    )
    assert resolve("lazy.py:Lazy", {}).name == "lazy"


def test_check_does_not_run_the_file(folder: Path) -> None:
    (folder / "raises.py").write_text("raise RuntimeError('run')\n")
    assert check("raises.py:anything", {}) == "raises.py:anything"


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("mine.py", ["'mine.py' names no factory", "path/to/file.py:factory"]),
        ("mine.py:", ["names no factory"]),
        ("mine.py:not a name", ["names no factory"]),
        ("mine.txt:Mine", ["must be a Python file", ".py"]),
        ("mien.py:Mine", ["mien.py does not exist", "did you mean 'mine.py'?"]),
        ("folder.py:Mine", ["folder.py is a folder; name a file in it"]),
        ("nowhere/mine.py:Mine", ["nowhere/mine.py does not exist", "holds no Python file"]),
        ("mine.py:Mien", ["no factory 'Mien'", "did you mean 'Mine'?"]),
        ("mine.py:constant", ["must be a class or function", "int 12; return it from a function"]),
        ("mine.py:unset", ["must be a class or function", "got None; return it from a function"]),
        ("mine.py:WORKLOAD", ["must be a class or function", "Callable <mine", "return it from a function"]),
        ("mine.py:seedless", ["returned a Mine whose dataset must be a method that takes a seed"]),
        ("mine.py:broken", ["mine.py:24: ValueError: the data is gone", "--debug"]),
        ("mine.py:leaves", ["mine.py:27: SystemExit: 3; move code", "__main__"]),
        ("mine.py:needy", ["needs a value for 'units'; write mine.py:needy:units=…"]),
        ("dotted.py:small", ["dotted.py:1: ImportError", "import files of the same folder by name"]),
        ("mine.py:nothing", ["must return (model, dataset)", "got None"]),
        ("mine.py:a_class", ["must return (model, dataset)", "the class Mine alone"]),
        ("mine.py:number", ["must return (model, dataset)", "a value of type int"]),
        ("mine.py:unnamed", ["returned a Unnamed without name"]),
        ("mine.py:stepless", ["whose train_step must be a method", "int 7"]),
    ],
)
def test_what_is_wrong_is_named(folder: Path, reference: str, parts: list[str]) -> None:
    (folder / "folder.py").mkdir()
    text = message(reference)
    for part in parts:
        assert part in text


@pytest.mark.parametrize(
    ("attribute", "value", "part"),
    [
        ("name", "  ", "a text that is not empty, got str"),
        ("batch_size", 2.0, "a positive whole number, got float 2.0"),
        ("batch_size", 0, "a positive whole number, got int 0"),
        ("batch_size", True, "a positive whole number, got bool True"),
        ("flops_per_example", -1.0, "a positive number, or None"),
        ("flops_per_example", "many", "a positive number, or None"),
        ("flops_per_example", 10**400, "a positive number, or None"),
        ("dataset", None, "a method that takes a seed"),
    ],
)
def test_attributes_of_the_wrong_type_are_named(
    folder: Path, attribute: str, value: object, part: str
) -> None:
    (folder / "mine.py").write_text(GOOD + f"\ndef bad():\n    return wrong({attribute}={value!r})\n")
    text = message("mine.py:bad")
    assert f"whose {attribute} must be" in text
    assert part in text


def test_parameters_are_checked_against_the_factory(folder: Path) -> None:
    assert "no parameter 'unit'; did you mean 'units'?" in message("mine.py:small", {"unit": 1})
    assert "batch_size must be a positive whole number, got -1" in message(
        "mine.py:small", {"batch_size": -1}
    )


def test_a_factory_needs_no_parameter_for_the_batch_size(folder: Path) -> None:
    assert resolve("mine.py:needy", {"batch_size": 2, "units": 1}).name == "mine"


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("x = 1\nraise KeyError('y')\n", "bad.py:2: KeyError: 'y'"),
        ("import absent_module_of_the_user\n", "bad.py:1: ModuleNotFoundError"),
        ("x = (\n", "bad.py:1: SyntaxError"),
        ("import sys\nsys.exit('no data')\n", "bad.py:2: SystemExit: no data"),
    ],
)
def test_a_file_that_raises_is_one_line_and_leaves_no_module(folder: Path, source: str, part: str) -> None:
    (folder / "bad.py").write_text(source)
    before = set(sys.modules)
    assert part in message("bad.py:Mine")
    assert not [name for name in set(sys.modules) - before if name.startswith("stratbench_")]


def test_a_mistake_in_a_file_beside_it_is_named_there(folder: Path) -> None:
    (folder / "beside.py").write_text("def f(:\n")
    assert "beside.py:1: SyntaxError" in message("mine.py:Mine")
