"""Names of workloads for `list workloads` and misspelt experiment files, without TensorFlow."""

import json
import subprocess
import sys

import pytest

from workloads import Workload, WorkloadError
from workloads.models.bert import Bert
from workloads.models.dense import WideMlp
from workloads.optimizers import OPTIMIZERS, build_optimizer
from workloads.registry import check, describe, resolve
from workloads.table import WORKLOADS

ONE_SIZE = ["digits-mlp", "digits-cnn", "word-lm", "wide-mlp"]
IMAGES = ["resnet50", "resnet101", "vgg16", "densenet121", "inception-v3"]
SHIPPED = [
    *ONE_SIZE,
    "linear-regression",
    "equal-variables",
    *IMAGES,
    "bert-base",
    "bert-large",
    "gpt-small",
    "lm1b",
    "ncf",
    "dlrm",
]


def test_describe_is_json_and_lists_every_shipped_workload() -> None:
    rows = json.loads(json.dumps(describe()))
    assert [row["name"] for row in rows] == [*SHIPPED, "keras:NAME"]
    for row in rows:
        assert row["summary"]
        assert {"batch_size", "optimizer", "learning_rate", "clip_global_norm"} <= {
            p["name"] for p in row["params"]
        }
        assert all({"name", "type", "default", "unit", "summary"} == set(param) for param in row["params"])
        assert all(param["summary"] for param in row["params"])


def test_neither_listing_nor_resolving_imports_tensorflow() -> None:
    program = (
        "import sys\n"
        "from workloads import TrainStep, Workload\n"
        "from workloads.registry import describe, resolve\n"
        "from workloads.table import WORKLOADS\n"
        "describe()\n"
        "[resolve(name, {}) for name in WORKLOADS]\n"
        "print([m for m in ('tensorflow', 'keras', 'sklearn') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", SHIPPED)
def test_every_default_passes_its_own_rule_and_makes_a_workload(name: str) -> None:
    defaults = {param.name: param.default for param in WORKLOADS[name].params}
    workload = resolve(name.replace("-", "_"), defaults)
    assert isinstance(workload, Workload)
    assert workload.name == name
    assert workload.batch_size == defaults["batch_size"]
    # Work of equal-variables does not depend on examples; that of images is known once the model is built.
    if name not in ("equal-variables", *IMAGES):
        assert workload.flops_per_example is not None
        assert workload.flops_per_example > 0


def test_flops_follow_the_weights() -> None:
    workload = resolve("digits-mlp", {"units": 2})
    assert workload.flops_per_example == 6 * (64 * 2 + 2 * 2 + 2 * 10)


def test_parameters_are_read_with_either_dash_and_from_text() -> None:
    workload = resolve("wide-mlp", {"batch-size": "8", "learning_rate": "1e-3", "clip_global_norm": None})
    assert workload.batch_size == 8
    assert isinstance(workload, WideMlp)
    assert workload.training.learning_rate == 0.001


def test_check_returns_the_name_that_records_write() -> None:
    assert check("digits_cnn", {"batch_size": 4}) == "digits-cnn"


@pytest.mark.parametrize(
    ("reference", "params", "field", "parts"),
    [
        ("digit-cnn", {}, "name", ["'digit-cnn'", "did you mean 'digits-cnn'?", "path/to/file.py:factory"]),
        ("xyzzy", {}, "name", ["'xyzzy'", "known: bert-base, bert-large, densenet121, digits-cnn"]),
        ("resnet50", {"size": "smal"}, "size", ["size must be one of tiny, small, full, got 'smal'"]),
        ("resnet50", {"width_multiplier": 1.5}, "width_multiplier", ["above 0 and at most 1", "got 1.5"]),
        ("wide-mlp", {"unit": 4}, "unit", ["'unit'", "did you mean 'units'?"]),
        ("wide-mlp", {"batch_size": 0}, "batch_size", ["at least 1", "got 0", "leave it out for 16"]),
        ("wide-mlp", {"batch_size": True}, "batch_size", ["got True"]),
        ("wide-mlp", {"batch_size": 2.5}, "batch_size", ["got 2.5"]),
        ("wide-mlp", {"batch_size": "many"}, "batch_size", ["got 'many'"]),
        ("wide-mlp", {"batch_size": None}, "batch_size", ["got None"]),
        ("wide-mlp", {"learning_rate": 0}, "learning_rate", ["above 0", "got 0"]),
        ("wide-mlp", {"learning_rate": float("nan")}, "learning_rate", ["got nan"]),
        ("wide-mlp", {"clip_global_norm": [1]}, "clip_global_norm", ["got [1]"]),
        ("digits-cnn", {"dropout": 1.0}, "dropout", ["at least 0 and below 1", "got 1.0"]),
        ("wide-mlp", {"optimizer": "adamm"}, "optimizer", ["one of sgd", "got 'adamm'"]),
        ("wide-mlp", {"optimizer": 3}, "optimizer", ["optimizer must be one of", "adagrad", "got 3"]),
    ],
)
@pytest.mark.parametrize("entrance", [check, resolve])
def test_mistakes_cost_one_line_with_the_way_out(
    entrance: object, reference: str, params: dict[str, object], field: str, parts: list[str]
) -> None:
    with pytest.raises(WorkloadError) as caught:
        entrance(reference, params)  # type: ignore[operator]
    assert caught.value.field == field
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def test_no_more_words_are_drawn_than_there_are_beside_the_right_one() -> None:
    with pytest.raises(WorkloadError, match="sampled must be below vocabulary=60, got 60") as caught:
        resolve("lm1b", {"size": "tiny", "sampled": 60})
    assert caught.value.field == "sampled"


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("bert-base", {"predictions": 13}, "predictions must be at most sequence=12, the tokens to mask"),
        ("bert-base", {"heads": 300}, "heads must divide width=16, got 300; give another number of either"),
        ("bert-large", {"heads": 3}, "heads must divide width=16, got 3"),
        ("bert-base", {"sequence": 17}, "sequence must be at most positions=16, got 17; lower it, or raise"),
        ("gpt-small", {"heads": 3}, "heads must divide width=16, got 3"),
        ("gpt-small", {"positions": 11}, "sequence must be at most positions=11, got 12"),
    ],
)
def test_sizes_of_a_transformer_fit_each_other(name: str, params: dict[str, object], message: str) -> None:
    with pytest.raises(WorkloadError, match=message) as caught:
        resolve(name, {"size": "tiny", **params})
    assert str(caught.value).startswith(str(caught.value.field))


def test_an_unknown_optimizer_is_refused_before_keras_is_needed() -> None:
    with pytest.raises(WorkloadError, match="did you mean 'sgd'"):
        build_optimizer("sgdd", learning_rate=None, variables=[])
    assert set(OPTIMIZERS) == {"sgd", "momentum", "adam", "adamw", "adagrad", "rmsprop"}


def test_a_model_of_keras_is_a_workload_by_its_name() -> None:
    workload = resolve("keras:MobileNetV2", {"input": 32, "batch_size": 4})
    assert isinstance(workload, Workload)
    assert (workload.name, workload.batch_size) == ("keras:MobileNetV2", 4)
    with pytest.raises(WorkloadError, match="has no parameter 'size'"):
        check("keras:MobileNetV2", {"size": 3})


def bert(params: dict[str, object]) -> Bert:
    workload = resolve("bert-large", params)
    assert isinstance(workload, Bert)
    return workload


def test_a_size_sets_what_was_not_given() -> None:
    full = bert({"size": "full", "batch-size": 4})
    assert (full.batch_size, full.layers, full.width) == (4, 24, 1024)
    assert bert({}).layers == 8
    assert bert({"layers": 3}).layers == 3


@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in ONE_SIZE])
def test_every_size_gives_every_parameter_but_training_and_data(name: str) -> None:
    entry = WORKLOADS[name]
    training = {"size", "optimizer", "learning_rate", "clip_global_norm", "data", "data_sha256", "pieces"}
    for size, values in entry.sizes.items():
        assert set(values) == {param.name for param in entry.params} - training
        resolved = resolve(name, {"size": size})
        for param, value in values.items():
            assert getattr(resolved, param) == value
        for parameter in entry.params:
            if parameter.name in values:
                assert parameter.read(values[parameter.name]) == values[parameter.name]
