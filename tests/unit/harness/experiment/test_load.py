from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.cli.commands.run import planned_table
from harness.cluster import PROVIDERS, Connection, Slice
from harness.errors import UsageError
from harness.experiment.cases import expand
from harness.experiment.load import load_experiment, parse, resolve
from harness.experiment.references import StrategyRef, WorkloadRef
from harness.pipeline import RunOutcome

_MINIMAL: dict[str, Any] = {"name": "x", "workloads": ["wide-mlp"], "strategies": ["single", "ps"]}
_CLUSTER = {"address": "head:10001", "data_network": "10.0.0.0/16"}
_SLICE = {"accelerator": "v4", "topology": "2x2x2"}


def _linked(**link: Any) -> dict[str, Any]:
    return {"cluster": {"provider": "docker", "link": link}}


def _laughs() -> str:
    """An array of 10⁹ values in a few hundred letters."""
    levels = ["&a0 [x]", *(f"&a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10))]
    return f"[{', '.join(levels)}]"


def _error(document: dict[str, Any]) -> str:
    with pytest.raises(UsageError) as caught:
        resolve(document)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_shipped_quickstart_is_what_the_contract_shows() -> None:
    spec = load_experiment("quickstart")
    assert [ref.reference for ref in spec.workloads] == ["digits-cnn", "wide-mlp", "dlrm"]
    assert [ref.name for ref in spec.strategies] == [
        "single",
        "none",
        "ps",
        "all-reduce",
        "tf-multi-worker-mirrored",
    ]
    assert (spec.cluster.workers, spec.cluster.memory_bytes) == ((2,), (4 * 2**30,))
    assert spec.measure.warmup_steps == "auto"
    assert (spec.measure.steps, spec.measure.repeats, spec.measure.batch) == (50, 3, "global")
    assert spec.baseline == StrategyRef(name="single")


def test_what_is_left_out_is_as_in_quickstart_with_more_of_rounds_and_repeats() -> None:
    short = resolve({**_MINIMAL, "name": "quickstart"})
    full = load_experiment("quickstart", settings=["measure.rounds=10", "measure.repeats=4"])
    assert (short.cluster, short.measure, short.baseline) == (full.cluster, full.measure, full.baseline)


def test_names_and_lists_may_be_written_in_several_ways() -> None:
    spec = resolve(
        {
            "name": "x",
            "workloads": {"name": "wide_mlp", "batch_size": 8},
            "strategies": [{"name": "ps", "staleness": 2}, "all_reduce"],
            "cluster": {"workers": [1, 2], "memory_per_worker": "1.5GiB"},
        }
    )
    assert spec.workloads == (WorkloadRef(reference="wide-mlp", params={"batch_size": 8}),)
    assert [str(ref) for ref in spec.strategies] == ["ps:staleness=2", "all-reduce"]
    assert spec.cluster.workers == (1, 2)
    assert spec.cluster.memory_bytes == (1610612736,)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"workloads": ["wide-mlp", {"name": "a.py:make", "batch_size": 4, "note": "true"}]},
        {"strategies": ["single", {"name": "ps", "sync": False, "ratio": 0.5}]},
        {"cluster": {"workers": [1, 2, 4], "memory_per_worker": 100_000_001}},
        {"workloads": ["a.py:make:batch_size=4,name=x"], "strategies": ["single", "b.py:Make:name=1e3"]},
        {"matrix": {"include": [{"strategy": "b.py:Make:name=x,k=2"}, {"strategy": "ps"}]}},
        {"matrix": {"exclude": [{"image": "mine"}, {"image": None, "workers": 2}]}},
        {"measure": {"warmup_steps": 7, "batch": "per-replica", "interleave": False}},
        {"measure": {"precision": "float16", "xla": True}},
        {"measure": {"xla": [False, True]}},
        {"measure": {"tf32": [True, False]}},
        {"measure": {"precision": ["float32", "bfloat16"]}},
        {"matrix": {"exclude": [{"strategy": "ps:sync=false", "workers": 4, "memory_per_worker": "1GiB"}]}},
        {"compare": {"baseline": "ps"}},
        {"compare": {"goal": "network"}},
        {"checkpoint": {"save": True, "restore": "a/b"}},
        _linked(rate_mbit=[100, 2.5, None], burst_kb=32, workers={1: {"rate_mbit": 10, "burst_kb": 8}}),
        _linked(workers={0: {"rate_mbit": None}, 1: {"rate_mbit": 10}}),
        {"cluster": {"device": "gpu", "share_gpus": True}},
        {"cluster": {"price_per_hour": 0.35}},
        {"cluster": {"price_per_hour": {"cpu": 2}}},
        {"cluster": {"provider": "cluster", "address": "head:10001"}},
        {"cluster": {"provider": "cluster", **_CLUSTER, "token_file": "a", "placement": "pack"}},
        {"cluster": {"provider": "cluster", **_CLUSTER, "device": "tpu", "slice": _SLICE}},
    ],
)
def test_the_resolved_document_resolves_to_itself_through_yaml(change: dict[str, Any]) -> None:
    spec = resolve(_MINIMAL | change)
    again = resolve(yaml.safe_load(yaml.safe_dump(spec.to_document())))
    assert again == spec
    assert again.spec_hash == spec.spec_hash


@given(st.permutations(sorted(load_experiment("quickstart").to_document())))
def test_the_hash_does_not_depend_on_the_order_of_keys(keys: list[str]) -> None:
    spec = load_experiment("quickstart")
    document = spec.to_document()
    assert resolve({key: document[key] for key in keys}).spec_hash == spec.spec_hash


@pytest.mark.parametrize(
    "setting",
    [
        "measure.seed=1",
        "measure.precision=bfloat16",
        "measure.xla=true",
        "measure.tf32=false",
        "measure.precision=[float32, bfloat16]",
        "cluster.workers=3",
        "strategies=[single, ps]",
        "compare.baseline=ps",
        "compare.goal=cheapest",
        "name=other",
        "checkpoint.save=true",
        "checkpoint.restore=a",
        "cluster.link.burst_kb=32",
        "cluster.price_per_hour=0.3",
    ],
)
def test_the_hash_sees_every_change(setting: str) -> None:
    changed = load_experiment("quickstart", settings=[setting])
    assert changed.spec_hash != load_experiment("quickstart").spec_hash


def test_every_key_of_a_connection_is_part_of_the_experiment() -> None:
    values = (*_CLUSTER.values(), Path("token"), "pack", Slice(accelerator="v4", topology="2x2x2"))
    keys = (*_CLUSTER, "token_file", "placement", "slice")
    assert {*keys} == {*Connection.model_fields}
    plain = resolve(_MINIMAL)
    changed = [
        plain.model_copy(update={"cluster": plain.cluster.model_copy(update={key: value})})
        for key, value in zip(keys, values, strict=True)
    ]
    assert len({spec.spec_hash for spec in [plain, *changed]}) == len(keys) + 1


def test_a_run_on_no_cluster_is_described_as_before_there_were_any() -> None:
    assert not set(resolve(_MINIMAL).to_document()["cluster"]) & {
        *_CLUSTER,
        "token_file",
        "placement",
        "slice",
    }


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"provider": "cluster"}, "cluster.address: must be given for the cluster provider, got nothing"),
        ({"address": "head:10001"}, "cluster.address: is of the cluster provider, got it with local"),
        (
            {"provider": ["docker", "cluster"], "address": "head:10001"},
            "cluster.provider: cluster must be the only provider of an experiment, got docker, cluster",
        ),
        ({"provider": "cluster", "address": "ray://head"}, "cluster.address: must be host:port"),
        ({"provider": "cluster", "address": "head:70000"}, "cluster.address: must be host:port"),
        (
            {"provider": "cluster", "address": "head:1", "data_network": "10.0.0.1"},
            "cluster.data_network: must be a network of IPv4 as CIDR",
        ),
        (
            {"provider": "cluster", "address": "head:1", "placement": "wide"},
            "cluster.placement: must be 'spread' or 'pack'",
        ),
        ({"slice": _SLICE}, "cluster.slice: is of the cluster provider, got it with local"),
        (
            {"provider": "cluster", **_CLUSTER, "slice": _SLICE},
            "cluster.slice: is for the device tpu, got it with cpu; drop it, or set cluster.device=tpu",
        ),
        (
            {"provider": "cluster", **_CLUSTER, "device": "tpu", "slice": _SLICE, "placement": "pack"},
            "cluster.placement: must be spread on a TPU slice",
        ),
        (
            {"provider": "cluster", **_CLUSTER, "device": "tpu", "slice": {**_SLICE, "topology": "8"}},
            "cluster.slice.topology: must be chips along each axis, such as 2x2x2 or 4x4, got '8'",
        ),
        (
            {"provider": "cluster", **_CLUSTER, "device": "tpu", "slice": {**_SLICE, "accelerator": "v9"}},
            "cluster.slice.accelerator: must be 'v2', 'v3', 'v4', 'v5p', 'v5litepod', 'v6e' or 'v7x', got",
        ),
        (
            {"provider": "cluster", **_CLUSTER, "device": "tpu", "slice": {**_SLICE, "shape": "2x2"}},
            "cluster.slice.shape: unknown key",
        ),
    ],
)
def test_a_cluster_must_be_reachable_as_it_is_told(cluster: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        resolve(_MINIMAL | {"cluster": cluster})


def test_a_provider_must_have_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROVIDERS, "local", replace(PROVIDERS["local"], devices=("cpu",)))
    with pytest.raises(UsageError, match="must be 'cpu' with the provider local, got 'tpu'"):
        resolve(_MINIMAL | {"cluster": {"device": "tpu"}})


@pytest.mark.parametrize("provider", PROVIDERS)
def test_gpus_can_be_had_wherever_tpus_are_refused_in_favour_of_them(provider: str) -> None:
    assert {"cpu", "gpu"} <= set(PROVIDERS[provider].devices)


def test_the_cluster_around_a_process_is_taken_where_no_other_is_named() -> None:
    around = {"STRATBENCH_CLUSTER_ADDRESS": "here:10001", "STRATBENCH_CLUSTER_TOKEN_FILE": "/run/token"}

    def result(*settings: str) -> tuple[str | None, Path | None]:
        spec = load_experiment("quickstart", settings=settings, surroundings=around)
        return spec.cluster.address, spec.cluster.token_file

    assert result() == (None, None)
    assert result("cluster.provider=cluster") == ("here:10001", Path("/run/token"))
    assert result("cluster.provider=cluster", "cluster.address=there:10001") == ("there:10001", None)


def test_a_file_that_travels_must_be_named_relative_to_the_current_folder(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.touch()
    with pytest.raises(UsageError, match=r"workloads\[0\]: must be relative"):
        resolve(_MINIMAL | {"workloads": [f"{file}:made"], "cluster": {"provider": "cluster", **_CLUSTER}})


def test_a_run_without_checkpoints_is_described_as_before_there_were_any() -> None:
    assert "checkpoint" not in resolve(_MINIMAL).to_document()
    assert resolve(_MINIMAL | {"checkpoint": {"save": False}}).spec_hash == resolve(_MINIMAL).spec_hash


def test_a_run_with_traces_is_described_as_before_there_were_any() -> None:
    traced = resolve(_MINIMAL | {"measure": {"trace": True}})
    assert (traced.measure.trace, traced.spec_hash) == (True, resolve(_MINIMAL).spec_hash)
    untraced = resolve(_MINIMAL | {"measure": {"trace": False}})
    assert resolve(untraced.to_document()).measure.trace is False


def test_a_run_as_written_is_described_as_before_there_were_other_computations() -> None:
    written = resolve(_MINIMAL | {"measure": {"precision": ["float32"], "xla": False, "tf32": True}})
    assert (written.measure.precision, written.spec_hash) == (("float32",), resolve(_MINIMAL).spec_hash)


def test_a_price_is_that_of_a_worker_with_the_device() -> None:
    assert resolve(_MINIMAL).price_per_hour("cpu") is None
    assert resolve(_MINIMAL | {"cluster": {"price_per_hour": 0.35}}).price_per_hour("cpu") == 0.35
    both = resolve(_MINIMAL | {"cluster": {"price_per_hour": {"gpu": 2.5, "cpu": 1}}})
    assert both.cluster.price_per_hour == {"cpu": 1.0}


def test_a_run_for_speed_is_described_as_before_there_were_other_goals() -> None:
    spec = resolve(_MINIMAL)
    assert spec.compare.goal == "fastest"
    assert spec.to_document()["compare"] == {"baseline": "single"}


def test_a_run_without_prices_is_described_as_before_there_were_any() -> None:
    assert "price_per_hour" not in str(resolve(_MINIMAL).to_document())


def test_a_run_without_other_limits_of_links_is_described_as_before_there_were_any() -> None:
    cluster = resolve(_MINIMAL | _linked(burst_kb=None, workers={})).to_document()["cluster"]
    assert isinstance(cluster, dict)
    assert cluster["link"] == {"rate_mbit": None}


def test_a_run_that_shares_no_gpus_is_described_as_before_it_could() -> None:
    on_gpus = {"cluster": {"device": "gpu"}}
    spec = resolve(_MINIMAL | on_gpus)
    assert "share_gpus" not in spec.to_document()["cluster"]  # type: ignore[operator]
    shared = resolve(_MINIMAL | {"cluster": {"device": "gpu", "share_gpus": True}})
    assert shared.spec_hash != spec.spec_hash
    assert {case.id for case in expand(shared)}.isdisjoint(case.id for case in expand(spec))
    outcome = RunOutcome(run_dir=None, cases=expand(shared), n_repeats=1)
    assert "may share GPUs" in planned_table(outcome).columns


def test_links_are_set_by_options_too() -> None:
    settings = [
        "cluster.provider=docker",
        "cluster.link.rate_mbit=100",
        "cluster.link.workers.1.rate_mbit=10",
    ]
    experiment = load_experiment("quickstart", settings=settings)
    written = load_experiment(
        "quickstart",
        overrides={
            "cluster.provider": "docker",
            "cluster.link": {"rate_mbit": 100, "workers": {1: {"rate_mbit": 10}}},
        },
    )
    assert experiment == written


@pytest.mark.parametrize(
    ("chosen", "batch_size"), [("digits-cnn", 512), ("digits_cnn", 512), ("digits-cnn:batch_size=8", 8)]
)
def test_a_workload_chosen_by_name_keeps_its_parameters(chosen: str, batch_size: int) -> None:
    experiment = load_experiment("quickstart", overrides={"workloads": [chosen, "word-lm"]})
    assert experiment.workloads == (
        WorkloadRef(reference="digits-cnn", params={"batch_size": batch_size}),
        WorkloadRef(reference="word-lm", params={}),
    )


def test_names_are_written_with_either_dash() -> None:
    spec = resolve(
        {
            "name": "x",
            "workloads": ["wide_mlp"],
            "strategies": ["robust_ps:rule=multi_krum,pre=nearest_neighbour_mixing", "ps:compressor=fp16-ef"],
            "cluster": {"device": "tpu_emulated"},
            "measure": {"batch": "per_replica"},
            "matrix": {"include": [{"strategy": "ps:compressor=fp16-ef"}, {"device": "tpu_emulated"}]},
            "compare": {"baseline": "robust_ps:rule=multi_krum,pre=nearest_neighbour_mixing"},
        }
    )
    assert spec == resolve(spec.to_document())
    document = str(spec.to_document())
    assert "multi_krum" not in document
    assert [dict(ref.params) for ref in spec.strategies] == [
        {"rule": "multi-krum", "pre": "nearest-neighbour-mixing"},
        {"compressor": "fp16-ef"},
    ]
    assert (spec.cluster.device, spec.measure.batch) == (("tpu-emulated",), "per-replica")


def test_home_is_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    spec = resolve(
        {
            "name": "x",
            "workloads": ["wide-mlp"],
            "strategies": ["~/b.py:Make:k=~/c", "~/edited.json", "~nobody-of-that-name/b.py:Make"],
            "cluster": {"provider": "cluster", **_CLUSTER, "token_file": "~/token"},
            "checkpoint": {"restore": "~/saved"},
        }
    )
    assert [ref.name for ref in spec.strategies] == [
        "/home/me/b.py:Make",
        "/home/me/edited.json",
        "~nobody-of-that-name/b.py:Make",
    ]
    assert spec.strategies[0].params == {"k": "~/c"}
    assert spec.cluster.token_file == Path("/home/me/token")
    assert spec.checkpoint.restore == Path("/home/me/saved")
    assert resolve(_MINIMAL | {"workloads": ["~/a.py:make"]}).workloads[0].reference == "/home/me/a.py:make"


def test_a_checkpoint_is_the_same_file_wherever_the_run_goes_on() -> None:
    spec = resolve(_MINIMAL | {"checkpoint": {"restore": "a/b"}})
    assert spec.checkpoint.restore == Path("a/b").absolute()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"strategys": []}, "strategys: unknown key, did you mean 'strategies'?"),
        ({"cluster": {"worker": 2}}, "cluster.worker: unknown key, did you mean 'workers'?"),
        ({"cluster": {"link": {"rate": 2}}}, "cluster.link.rate: unknown key, did you mean 'rate_mbit'?"),
        ({"measure": {"stpes": 2}}, "measure.stpes: unknown key, did you mean 'steps'?"),
        ({"matrix": {"exclude": [{"strat": "ps"}]}}, "matrix.exclude[0].strat: unknown key, did you mean"),
        ({"cluster": {"workers": "two"}}, "cluster.workers: must be a whole number, got 'two' (str)"),
        ({"cluster": {"workers": [1, True]}}, "cluster.workers[1]: must be a whole number, got True (bool)"),
        ({"cluster": {"workers": 2.0}}, "cluster.workers: must be a whole number, got 2.0 (float)"),
        ({"cluster": {"workers": 0}}, "cluster.workers: must be greater than or equal to 1, got 0"),
        ({"cluster": {"workers": []}}, "cluster.workers: must have at least 1 item, got []"),
        (
            {"cluster": {"provider": "dockr"}},
            "cluster.provider: must be 'local' or 'docker' or 'cluster', got 'dockr'",
        ),
        (
            {"cluster": {"provider": ["local", 1]}},
            "cluster.provider[1]: must be 'local' or 'docker' or 'cluster', got 1",
        ),
        (
            {"measure": {"precision": "bfloat"}},
            "measure.precision: must be 'float32' or 'bfloat16' or 'float16' (did you mean 'bfloat16'?), got",
        ),
        (
            {"measure": {"precision": ["float16", 16]}},
            "measure.precision[1]: must be 'float32' or 'bfloat16'",
        ),
        (
            {"measure": {"tf32": [True, True]}},
            "measure.tf32: must have different values, got true twice; drop",
        ),
        ({"cluster": {"workers": [2, 4, 2]}}, "cluster.workers: must have different values, got 2 twice"),
        (
            # 1 and 1.0 are one value, and so one strategy.
            {"strategies": ["ps:staleness=1", {"name": "ps", "staleness": 1.0}]},
            "strategies: must have different values, got ps:staleness=1.0 twice; drop one",
        ),
        ({"measure": {"tf32": "no"}}, "measure.tf32: must be a valid boolean, got 'no' (str)"),
        (
            {"cluster": {"share_gpus": True}},
            "cluster.share_gpus: is for cluster.device=gpu, got it with cpu; drop it, or set cluster.device",
        ),
        (
            {"cluster": {"provider": "cluster", **_CLUSTER, "device": "gpu", "share_gpus": True}},
            "cluster.share_gpus: must be false with the provider cluster, where Ray gives each worker its",
        ),
        ({"measure": {"xla": "yes"}}, "measure.xla: must be a valid boolean, got 'yes' (str)"),
        (
            {"cluster": {"device": "npu"}},
            "cluster.device: must be 'cpu' or 'gpu' or 'tpu' or 'tpu-emulated', got 'npu'",
        ),
        (
            {"cluster": {"link": {"rate_mbit": 100}}},
            "cluster.link.rate_mbit: must be null with the provider local, which cannot limit links; use",
        ),
        (
            {"cluster": {"link": {"workers": {0: {"rate_mbit": 10}}}}},
            "cluster.link.rate_mbit: must be null with the provider local",
        ),
        (_linked(rate_mbit=0), "cluster.link.rate_mbit: must be greater than 0, got 0 (int)"),
        (
            _linked(rate_mbit=[None, -2.5]),
            "cluster.link.rate_mbit[1]: must be greater than 0, got -2.5 (float)",
        ),
        (_linked(rate_mbit=float("inf")), "cluster.link.rate_mbit: must be a finite number, got inf"),
        (
            _linked(rate_mbit=1e6),
            "cluster.link.rate_mbit: must be at most 30,000, the highest limit that Linux can set",
        ),
        (_linked(rate_mbit=[]), "cluster.link.rate_mbit: must have at least 1 item, got []"),
        (_linked(burst_kb=0), "cluster.link.burst_kb: must be greater than or equal to 2, got 0 (int)"),
        (_linked(workers=[10]), "cluster.link.workers: must be a mapping from a worker's number to its link"),
        (
            _linked(workers={"a": {"rate_mbit": 1}}),
            "cluster.link.workers.a: must be a whole number, got 'a'",
        ),
        (_linked(workers={1: {"rate_mbit": 0}}), "cluster.link.workers.1.rate_mbit: must be greater than 0"),
        (
            _linked(workers={"1": {"rate": 1}}),
            "cluster.link.workers.1.rate: unknown key, did you mean 'rate_mbit'?",
        ),
        (
            _linked(workers={2: {"rate_mbit": 1}}),
            "cluster.link.workers: must be a worker's number, 0 to 1, got 2",
        ),
        (
            {"cluster": {"memory_per_worker": "lots"}},
            "cluster.memory_per_worker: must be bytes or a size such as",
        ),
        ({"cluster": {"memory_per_worker": 4}}, "cluster.memory_per_worker: must be at least 64MiB"),
        (
            {"cluster": {"memory_per_worker": True}},
            "cluster.memory_per_worker: must be bytes or a size such as",
        ),
        *(
            (
                {"cluster": {"price_per_hour": price}},
                "cluster.price_per_hour: must be the price of a worker's",
            )
            for price in (0, -1, True, "much", float("nan"), 1e9, [1], {}, {"cpu": "1"}, {"dog": 1})
        ),
        ({"cluster": [1]}, "cluster: must be a mapping, got [1] (list)"),
        ({"cluster": None}, "cluster: must be a mapping, got null"),
        (
            {"measure": {"warmup_steps": "later"}},
            "measure.warmup_steps: must be 'auto' or a whole number, got",
        ),
        (
            {"measure": {"steps": 0, "repeats": 0}},
            "measure.steps: must be greater than or equal to 1, got 0 (int)",
        ),
        ({"measure": {"interleave": 1}}, "measure.interleave: must be a valid boolean, got 1 (int)"),
        ({"measure": {"batch": "local"}}, "measure.batch: must be 'global' or 'per-replica', got 'local'"),
        ({"measure": {"seed": -1}}, "measure.seed: must be greater than or equal to 0"),
        ({"strategies": []}, "strategies: must have at least 1 item, got []"),
        ({"strategies": [7]}, "strategies[0]: must be a name, name:key=value or a mapping"),
        ({"strategies": ["ps:x"]}, "strategies[0]: parameters must be key=value, got 'x'"),
        ({"workloads": ["ps", "a/b"]}, "workloads[1]: a file must be given as path.py:factory"),
        ({"workloads": [{"name": "w", "batch_size": 0}]}, "workloads[0].batch_size: must be a whole number"),
        (
            {"workloads": [{"name": "w", "batch_size": True}]},
            "workloads[0].batch_size: must be a whole number",
        ),
        (
            {"compare": {"baseline": "pss"}},
            "compare.baseline: must be one of the strategies (single, ps), got 'pss'",
        ),
        (
            {"compare": {"goal": "cheap"}},
            "compare.goal: must be 'fastest', 'cheapest' or 'network', got 'cheap'",
        ),
        ({"matrix": {"include": [{}]}}, "matrix.include[0]: must have at least one key"),
        (
            {"matrix": {"exclude": [{"workload": None}]}},
            "matrix.exclude[0].workload: must say which cases are meant, got null; drop it",
        ),
        ({"matrix": {"include": [{"workers": None}]}}, "matrix.include[0].workers: must say which cases"),
        (
            {"strategies": ["single", "ps:staleness=2", "sync=true"]},
            "strategies[2]: a name must be letters, digits and dashes, got 'sync=true'; in YAML quote the",
        ),
        (
            {"strategies": [{"name": "ps:staleness=2", "sync=true": None}]},
            "strategies[0]: a parameter's name must be a word, got 'sync=true'; in YAML quote the whole",
        ),
        (
            {"matrix": {"exclude": [{"workers": 2}] * 1001}},
            "matrix.exclude: must have at most 1000 items, got [{'workers': 2}, ",
        ),
        ({"name": ""}, "name: must have at least 1 character, got ''"),
        ({"measure": {"trace": "all"}}, "measure.trace: must be a valid boolean, got 'all' (str)"),
        ({"checkpoint": {"load": "a"}}, "checkpoint.load: unknown key, "),
        ({"checkpoint": {"restore": ""}}, "checkpoint.restore: must have at least 1 character, got ''"),
        ({3: 4}, "experiment: keys must be text, got 3 (int); quote it"),
        ({"cluster": {None: 4}}, "cluster: keys must be text, got None (NoneType); quote it"),
        ({"cluster": {"workers": 10**20}}, "cluster.workers: must be less than or equal to 1000000, got 1"),
        ({"measure": {"repeats": 10**12}}, "measure.repeats: must be less than or equal to 1000000, got 1"),
        ({"measure": {"warmup_steps": 10**9}}, "measure.warmup_steps: must be 'auto' or less than or equal"),
        ({"cluster": {"memory_per_worker": "9" * 400 + "GiB"}}, "cluster.memory_per_worker: must be at most"),
        ({"name": 3}, "name: must be a valid string, got 3 (int); quote it"),
        ({"faults": None}, "faults: must be a list of faults or a mapping of names to such lists, got null"),
        (
            {"faults": "nan"},
            "faults: must be a list of faults or a mapping of names to such lists, got 'nan'",
        ),
        ({"faults": {1: []}}, "faults: keys must be text, got 1 (int); quote it"),
        ({"faults": {"": []}}, "faults: keys must have at least 1 character, got ''; name it"),
    ],
)
def test_a_wrong_file_costs_one_line_that_names_the_field(change: dict[str, Any], expected: str) -> None:
    assert _error(_MINIMAL | change).startswith(expected)


def test_a_missing_list_is_named() -> None:
    assert _error({"name": "x", "strategies": ["ps"]}).startswith("workloads: must be given")


def test_a_baseline_that_was_replaced_falls_back_with_a_note() -> None:
    spec = load_experiment("quickstart", overrides={"strategies": ["ps", "all-reduce"]})
    assert spec.baseline == StrategyRef(name="ps")
    assert spec.notes == ("baseline single is not among the strategies given; comparing with ps instead",)


def test_options_lie_over_settings_and_settings_over_the_file() -> None:
    spec = load_experiment(
        "quickstart", settings=["measure.steps=5", "measure.repeats=9"], overrides={"measure.steps": 7}
    )
    assert (spec.measure.steps, spec.measure.repeats, spec.measure.seed) == (7, 9, 0)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("measure.steps", "set: must be dotted.path=value"),
        ("=3", "set: must be dotted.path=value"),
        ("a..b=3", "set: must be dotted.path=value"),
        ("measure.steps=[", "set measure.steps: the value must be YAML"),
        (
            "measure.steps=2020-99-99",
            "set measure.steps: the value must be YAML, got '2020-99-99' (month must",
        ),
        ("name=" + "[" * 5000, "set name: the value must be YAML"),
        ("name={? [a]: b}", "set name: the value must be YAML, got '{? [a]: b}' (a key must be text"),
        ("name.x=3", "name.x: 'x' must be inside a mapping, got 'quickstart' there"),
        ("strategies.9=ps", "strategies.9: '9' must be an index below 5"),
    ],
)
def test_a_wrong_setting_is_named(setting: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_experiment("quickstart", settings=[setting])
    assert str(caught.value).startswith(expected)


def test_a_path_is_set_once() -> None:
    with pytest.raises(UsageError, match=r"^set measure\.steps: must be set once, got it again; drop one$"):
        load_experiment("quickstart", settings=["measure.steps=5", "measure.rounds=3", "measure.steps=6"])


def test_a_setting_reaches_into_a_list_and_makes_sections() -> None:
    spec = load_experiment(
        "quickstart", settings=["strategies.2=ps:staleness=0", "cluster.link.rate_mbit=null"]
    )
    assert str(spec.strategies[2]) == "ps:staleness=0"


def test_what_an_anchor_names_may_be_merged_and_repeated(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "workloads: &both [wide-mlp]\nstrategies: ps\nmeasure: {<<: {steps: 7, seed: 1}, steps: 9}\n"
    )
    spec = load_experiment(str(path))
    assert (spec.measure.steps, spec.measure.seed) == (9, 1)


def test_a_file_is_found_by_path_and_named_after_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("workloads: wide-mlp\nstrategies: [single]\n")
    assert load_experiment(str(path)).name == "mine"


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 1e-3), ("1.0e12", 1e12), ("-.5E+2", -50.0), ("'1e3'", "1e3")]
)
def test_numbers_with_exponents_are_numbers(text: str, value: float | str) -> None:
    assert parse(f"a: {text}") == {"a": value}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "must hold a mapping with workloads and strategies, got NoneType"),
        ("- a", "must hold a mapping with workloads and strategies, got list"),
        ("a: [", "mine.yaml:1: must be YAML"),
        ("workloads: [a]\nworkloads: [b]\n", "mine.yaml:2: must be YAML: key 'workloads' is given twice"),
        ("a: !!python/object:os.system {}", "must be YAML: could not determine a constructor"),
        ("\x00", "must be a readable text file"),
        ("? [a]\n: 1\n", "mine.yaml:1: must be YAML: a key must be text, got a list or mapping"),
        ("\nname: 2020-99-99\n", "mine.yaml:2: must be YAML: month must be in 1..12"),
        ("\nname: !!int ten\n", "mine.yaml:2: must be YAML: invalid literal for int() with base 10: 'ten'"),
        ("\nname: &a [*a]\n", "mine.yaml:2: must be YAML: an anchor must not be inside of itself"),
        (_laughs(), "mine.yaml:1: must be YAML: must expand to at most 100000 values, anchors repeated"),
        ("[" * 5000, "must be a readable text file: must not be nested hundreds of times"),
        ("{a: " * 5000, "must be a readable text file: must not be nested hundreds of times"),
        ("#" * 2**21, "must be an experiment of at most 1048576 bytes, got 2097152; name another file"),
    ],
)
def test_a_file_that_is_not_an_experiment_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_experiment(str(path))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(UsageError, match="must be a readable text file"):
        load_experiment(str(path))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("quickstrat", "did you mean 'quickstart'?"),
        ("./mine.py:model:rate=0.5", "write `quickstart --workloads ./mine.py:model:rate=0.5`"),
        ("zzz", "known are byzantine, byzantine-short, demo, link-sweep"),
        ("no/such.yaml", "which is not there"),
        ("mine.yml", "which is not there"),
        ("folder/", "which is a folder"),
        ("folder", "got the folder 'folder'"),
    ],
)
def test_an_unknown_experiment_is_refused_with_a_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    with pytest.raises(UsageError, match="experiment: must be a file or a shipped experiment") as caught:
        load_experiment(name)
    assert expected in str(caught.value)


def test_batches_are_staged_unless_a_pipeline_is_asked_for() -> None:
    staged, pipeline = resolve(_MINIMAL), resolve({**_MINIMAL, "measure": {"input": "pipeline"}})
    assert (staged.measure.input, pipeline.measure.input) == ("staged", "pipeline")
    # Runs from before there were pipelines keep their hash.
    assert resolve({**_MINIMAL, "measure": {"input": "staged"}}).spec_hash == staged.spec_hash
    assert pipeline.spec_hash != staged.spec_hash
    assert resolve(pipeline.to_document()) == pipeline
    assert _error({**_MINIMAL, "measure": {"input": "memory"}}).startswith(
        "measure.input: must be 'staged' or 'pipeline', got 'memory'"
    )
