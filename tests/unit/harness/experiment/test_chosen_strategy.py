"""A user's own strategy wherever a name does, and every way in which its file can be wrong."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.experiment.chosen_strategy import choose, source_hash
from harness.experiment.load import load_experiment, resolve
from harness.experiment.references import parse_strategy
from harness.preflight import check_experiment
from strategies.errors import StrategyError
from strategies.plan.schema import Plan, StepSummary, VariableSummary
from strategies.topology import Topology
from workloads import registry

GOOD = """
from beside import SUMMARY
from strategies import Param, node_of, on_servers


class Last:
    name = "last-ps"
    summary = SUMMARY
    strategy_class = "exact"
    params = (Param(name="sync", type=bool, default=True), Param(name="share", type=float, default=0.5))

    def layout(self, step, topology, params):
        last = topology.n_tasks - 1
        return on_servers(step, {v.name: last for v in step.variables}, topology, params)


def make():
    return Last()


def broken():
    raise ValueError("the data\\nis gone")


def needy(size):
    return Last()


def a_class():
    return Last


def nothing():
    pass


def wrong(**values):
    made = Last()
    vars(made).update(values)
    return made


def without(attribute):
    return type("Bare", (), {k: v for k, v in vars(Last).items() if k != attribute})()


class Moody(Last):
    @property
    def summary(self):
        raise RuntimeError("not today")


def laid_out(layout):
    return wrong(layout=layout)


def reduced(variable, **fields):
    return node_of(variable, synchronizer="all-reduce", group=0, **fields)


constant = 12
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    modules = set(sys.modules)
    (tmp_path / "beside.py").write_text("SUMMARY = 'all on the last worker'\n")
    (tmp_path / "mine.py").write_text(GOOD)
    yield tmp_path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def step() -> StepSummary:
    variable_summaries = [
        VariableSummary(name=name, kind="trainable", dtype="float", shape=(4,), bytes=16, synced=True)
        for name in ("w", "b")
    ]
    return StepSummary(workload="hand-made", n_nodes=1, variables=tuple(variable_summaries), batch=())


def plan(text: str) -> Plan:
    topology = Topology(replicas_per_task=(1, 1, 1), batch_size=8)
    return choose(parse_strategy(text, field="s")).plan(step(), topology)


def message(reference: str) -> str:
    with pytest.raises((UsageError, StrategyError)) as caught:
        plan(reference)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("reference", ["mine.py:Last", "./mine.py:make", "mine.py:Last:share=0.25"])
def test_a_builder_plans(folder: Path, reference: str) -> None:
    planned = plan(reference)
    assert [node.destination for node in planned.nodes] == [2, 2]
    assert (planned.strategy, planned.strategy_class) == ("last-ps", "exact")
    assert planned.strategy_params == {
        "sync": True,
        "share": 0.25 if "share" in reference else 0.5,
        "merge_rows": False,
    }
    # Two workers pull and push both variables.
    assert planned.payload_bytes_per_step == 2 * 2 * 32


def test_knobs_of_servers_have_their_say_in_the_class(folder: Path) -> None:
    assert plan("mine.py:Last:sync=false").strategy_class == "statistical"


def test_one_replica_keeps_its_step(folder: Path) -> None:
    alone = Topology(replicas_per_task=(1,), batch_size=8)
    planned = choose(parse_strategy("mine.py:Last", field="s")).plan(step(), alone)
    assert {node.synchronizer for node in planned.nodes} == {"none"}
    assert planned.notes == ("one replica: last-ps leaves the captured graph unchanged",)


def test_a_file_is_run_once_and_its_hash_kept(folder: Path) -> None:
    ref = parse_strategy("mine.py:Last", field="s")
    first, before = choose(ref).strategy, source_hash("mine.py:Last")
    (folder / "mine.py").write_text("raise RuntimeError('edited')\n")
    assert choose(ref).strategy is not None
    assert choose(ref).strategy.name == first.name
    assert source_hash("mine.py:Last") == before
    assert len(str(before)) == 64
    assert source_hash("gone.py:Last") is None


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("mien.py:Last", ["strategy file mien.py does not exist", "did you mean 'mine.py'?"]),
        ("mine.py:Lost", ["has no Builder 'Lost'", "did you mean 'Last'?"]),
        ("mine.py:constant", ["must be a class or function that makes a strategy, got int 12"]),
        ("mine.py:broken", ["mine.py:22: ValueError: the data is gone", "--debug"]),
        ("mine.py:needy", ["needs a value for 'size'; give it a default"]),
        ("mine.py:a_class", ["must return a builder, got the class Last"]),
        ("mine.py:nothing", ["must return a builder, got None"]),
        ("mine.py:Last:shear=1", ["strategy 'last-ps': unknown parameter 'shear'; did you mean 'share'?"]),
        ("mine.py:Last:share=x", ["share must be float, got 'x'"]),
    ],
)
def test_what_is_wrong_with_a_file_is_named(folder: Path, reference: str, parts: list[str]) -> None:
    text = message(reference)
    for part in parts:
        assert part in text


@pytest.mark.parametrize(
    ("result", "part"),
    [
        ("without('name')", "returned a Bare without name; give it name, a kebab-case text"),
        (
            "without('strategy_class')",
            "without strategy_class; give it strategy_class, one of exact",
        ),
        ("without('layout')", "without layout"),
        ("wrong(name='My_Own')", "name must be a kebab-case text such as 'my-strategy', got str 'My_Own'"),
        ("wrong(name='ps')", "name must not be that of another strategy, got 'ps'; choose another"),
        ("wrong(strategy_class='correct')", "strategy_class must be one of exact, bounded, statistical"),
        ("wrong(strategy_class=[])", "strategy_class must be one of exact"),
        ("wrong(summary='')", "summary must be a line of text, got str ''"),
        ("wrong(params={'a': 1})", "params must be a list or tuple of Param"),
        ("wrong(params=[Param(name='A', type=int, default=1)])", "param 'A': name must be snake_case"),
        ("wrong(params=2 * [Param(name='a', type=int, default=1)])", "different names, got 'a' twice"),
        ("wrong(params=[Param(name='a', type=list, default=1)])", "type must be bool, int, float or str"),
        (
            "wrong(params=[Param(name='a', type=int, default='x')])",
            "'a': default: a must be int, got 'x'",
        ),
        (
            "wrong(params=[Param(name='a', type=int, default=1, minimum=1, tunable=(1, 0))])",
            "param 'a': tunable: a must be at least 1, got 0",
        ),
        (
            "wrong(params=[Param(name='staleness', type=float, default=1.0)])",
            "param 'staleness': it is a knob of type int everywhere, got float",
        ),
        ("Moody()", "mine.py:50: RuntimeError: not today; --debug shows the traceback"),
        ("laid_out(lambda *_: None)", "layout must return a list of plan nodes, got NoneType"),
        ("laid_out(lambda *_: ['w'])", "layout must return plan nodes, got a str; make them with node_of"),
        ("laid_out(lambda s, t, p: p['rank'])", "mine.py:65: KeyError: 'rank'"),
        ("laid_out(lambda: [])", "TypeError"),
        ("laid_out(lambda *_: (yield_ for yield_ in ()).throw(GeneratorExit('odd')))", "GeneratorExit: odd"),
        (
            "laid_out(lambda s, t, p: [node_of(s.variables[0], synchronizer='ps', destination=0)])",
            "mine.py:bad: layout: variable 'b': needs a node, got none; add one",
        ),
        (
            "laid_out(lambda s, t, p: [node_of(v, synchronizer='ps', destination=3) for v in s.variables])",
            "layout: variable 'w': destination must be a task from 0 to 2, got 3; choose one",
        ),
        (
            "laid_out(lambda s, *_: [reduced(v).model_copy(update={'group': 'a'}) for v in s.variables])",
            "layout: variable 'w': group: input should be a valid integer, unable to parse string as an",
        ),
        (
            "laid_out(lambda s, *_: [reduced(v, compressor={'name': 'bf16'}) for v in s.variables])",
            "variable 'w': strategy_class exact needs gradients as they are, got compressor 'bf16'",
        ),
        (
            "laid_out(lambda s, t, p: [node_of(v, destination='x') for v in s.variables])",
            "variable 'w': destination: input should be a valid integer",
        ),
        (
            "laid_out(lambda s, t, p: [node_of(v, synchroniser='ps') for v in s.variables])",
            "variable 'w': synchroniser: extra inputs are not permitted, got 'ps'",
        ),
    ],
)
def test_what_a_builder_lacks_is_named(folder: Path, result: str, part: str) -> None:
    (folder / "mine.py").write_text(GOOD + f"\n\ndef bad():\n    return {result}\n")
    assert part in message("mine.py:bad")


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("x = 1\nraise KeyError('y')\n", "bad.py:2: KeyError: 'y'"),
        ("import absent_module_of_the_user\n", "bad.py:1: ModuleNotFoundError"),
        ("x = (\n", "bad.py:1: SyntaxError"),
        ("import sys\nsys.exit('no')\n", "bad.py:2: SystemExit: no"),
    ],
)
def test_a_file_that_raises_is_one_line(folder: Path, source: str, part: str) -> None:
    (folder / "bad.py").write_text(source)
    assert part in message("bad.py:Mine")


def test_two_strategies_of_one_name_are_refused(folder: Path) -> None:
    document = {"name": "x", "workloads": ["digits-mlp"], "strategies": ["mine.py:Last", "mine.py:make"]}
    with pytest.raises(UsageError) as caught:
        check_experiment(resolve(document))
    assert str(caught.value) == (
        "strategies[1]: mine.py:make must have a name that no other strategy has, got 'last-ps', which "
        "mine.py:Last has too; rename one"
    )
    knobs = ["mine.py:Last", "mine.py:Last:share=0.25"]
    check_experiment(resolve({**document, "strategies": knobs}))


def document(**changes: object) -> dict[str, object]:
    return {"name": "x", "workloads": ["hand-made"], "strategies": ["edited.json"], **changes}


def printed(folder: Path, name: str = "edited.json") -> None:
    topology = Topology(replicas_per_task=(1, 1), batch_size=8)
    planned = choose(parse_strategy("ps", field="s")).plan(step(), topology)
    (folder / name).write_text(planned.model_dump_json())


def test_a_plan_is_a_strategy_named_after_its_file(folder: Path) -> None:
    printed(folder, "My_Edit.json")
    chosen = choose(parse_strategy("./My_Edit.json", field="s"))
    assert (chosen.strategy.name, chosen.strategy.strategy_class) == ("plan-my-edit", "exact")
    planned = chosen.plan(step(), Topology(replicas_per_task=(1, 1), batch_size=6))
    assert (planned.strategy, planned.batch_size, planned.payload_bytes_per_step) == ("plan-my-edit", 6, 64)
    assert source_hash("./My_Edit.json") is not None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"workloads": ["digits-mlp"]}, "is for workload 'hand-made', got 'digits-mlp'; make one with"),
        ({"cluster": {"workers": [3, 4]}}, "is for 2 workers of 1 replica, got 3 workers of 1 replica; give"),
        (
            {"cluster": {"replicas_per_worker": 2}},
            "got 2 workers of 2 replicas; give its numbers",
        ),
    ],
)
def test_a_plan_that_is_for_no_case_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], text: str
) -> None:
    monkeypatch.setattr(registry, "check", lambda reference, params: reference)
    printed(folder)
    with pytest.raises(UsageError, match=text) as caught:
        check_experiment(resolve(document(**changes)))
    assert str(caught.value).startswith("strategies[0]: plan edited.json: ")
    check_experiment(resolve(document(workloads=["hand-made", "digits-mlp"], cluster={"workers": [2, 3]})))


def test_a_plan_joins_the_strategies_of_an_experiment() -> None:
    spec = load_experiment("quickstart", overrides={"strategies": ["ps"]}, plan="edited.json")
    assert [str(ref) for ref in spec.strategies] == ["ps", "edited.json"]
    assert str(load_experiment("quickstart", plan="edited.json").strategies[-1]) == "edited.json"


def test_neither_a_builder_nor_a_plan_needs_tensorflow(folder: Path) -> None:
    printed(folder)
    program = (
        "import sys; from harness.experiment.chosen_strategy import choose\n"
        "from harness.experiment.references import parse_strategy\n"
        "[choose(parse_strategy(text, field='s')) for text in ('mine.py:Last', 'edited.json')];"
        "sys.exit(any(m in sys.modules for m in ('tensorflow', 'keras', 'ray')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
