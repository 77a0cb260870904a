import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.experiment.references import (
    StrategyRef,
    WorkloadRef,
    parse_scalar,
    parse_strategy,
    parse_workload,
    scalar_text,
    split_list,
    strategy_from,
    workload_from,
)

_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_VALUES = st.none() | st.booleans() | st.integers() | _FLOATS | st.text(max_size=12)
_NAMES = st.from_regex(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", fullmatch=True)
_KEYS = st.from_regex(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", fullmatch=True)
_FILES = st.from_regex(r"([a-zA-Z_.]{1,4}/){0,2}[a-zA-Z_]{1,4}\.py:[a-zA-Z_]{1,4}", fullmatch=True)
_REFS = st.builds(StrategyRef, name=_NAMES | _FILES, params=st.dictionaries(_KEYS, _VALUES, max_size=3))


@given(_VALUES)
def test_a_value_survives_its_text_with_its_type(value: bool | int | float | str | None) -> None:
    again = parse_scalar(scalar_text(value))
    assert (type(again), again) == (type(value), value)


@settings(max_examples=50)
@given(st.lists(_REFS, min_size=1, max_size=3))
def test_a_comma_list_comes_apart_as_it_was_joined(refs: list[StrategyRef]) -> None:
    pieces = split_list(",".join(map(str, refs)), field="strategies")
    assert [parse_strategy(piece, field="strategies") for piece in pieces] == refs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ps", ["ps"]),
        ("ps, all-reduce", ["ps", "all-reduce"]),
        ("ps:staleness=2,sync=true,all-reduce", ["ps:staleness=2,sync=true", "all-reduce"]),
        ("single,ps:staleness=2,ps:backup=1", ["single", "ps:staleness=2", "ps:backup=1"]),
        ("ps,staleness=2", ["ps:staleness=2"]),
        ("a/b.py:make,wide-mlp", ["a/b.py:make", "wide-mlp"]),
        ("a/b.py:Make,k=1,j=2,ps", ["a/b.py:Make:k=1,j=2", "ps"]),
        ("a/b.py:Make:k=1,j=2,c.py:D", ["a/b.py:Make:k=1,j=2", "c.py:D"]),
        ("edited.json,ps:staleness=2", ["edited.json", "ps:staleness=2"]),
        ("keras:VGG16,input=32,wide-mlp", ["keras:VGG16:input=32", "wide-mlp"]),
        ("keras:VGG16:input=32,classes=2,keras:VGG19", ["keras:VGG16:input=32,classes=2", "keras:VGG19"]),
    ],
)
def test_a_piece_with_a_key_continues_the_one_before_it(text: str, expected: list[str]) -> None:
    assert list(split_list(text, field="x")) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2", 2),
        ("-2", -2),
        ("0.5", 0.5),
        ("1e-3", 1e-3),
        ("2.", 2.0),
        ("true", True),
        ("False", False),
        ("null", None),
        ("ring", "ring"),
        ('"true"', "true"),
        ('"half', '"half'),
        ("1_000", "1_000"),
        ("nan", "nan"),
    ],
)
def test_values_are_typed(text: str, expected: object) -> None:
    scalar = parse_scalar(text)
    assert (type(scalar), scalar) == (type(expected), expected)


def test_names_are_kebab_case_and_parameters_snake_case() -> None:
    ref = parse_strategy(" PS_load_balancing:local-proxy-variable=true ", field="x")
    assert ref == StrategyRef(name="ps-load-balancing", params={"local_proxy_variable": True})


def test_a_mapping_gives_name_and_parameters() -> None:
    assert strategy_from({"name": "ps", "staleness": 2}, field="x") == parse_strategy(
        "ps:staleness=2", field="x"
    )
    assert workload_from({"name": "m.py:make", "batch_size": 8}, field="x") == WorkloadRef(
        reference="m.py:make", params={"batch_size": 8}
    )


@pytest.mark.parametrize("read", [strategy_from, workload_from])
@pytest.mark.parametrize("name", ["ps:staleness=2", "a.py:Make:staleness=2"])
def test_a_parameter_is_given_once_in_a_mapping_too(read: Callable[..., object], name: str) -> None:
    with pytest.raises(UsageError, match="x: parameter 'staleness' must be given once"):
        read({"name": name, "staleness": 3}, field="x")


def test_a_plan_takes_no_parameters_of_a_mapping_either() -> None:
    with pytest.raises(UsageError, match="x: a plan takes no parameters, got 'sync'; edit the file"):
        strategy_from({"name": "edited.json", "sync": False}, field="x")


def test_a_file_keeps_its_spelling() -> None:
    ref = parse_workload("My_Models/a_b.py:Make_It", field="x")
    assert ref == WorkloadRef(reference="My_Models/a_b.py:Make_It")
    assert ref.is_path
    strategy = parse_strategy("My_Models/a_b.py:Make_It", field="x")
    assert (strategy.name, strategy.is_builder, strategy.is_plan) == ("My_Models/a_b.py:Make_It", True, False)


def test_what_a_file_makes_takes_parameters_after_another_colon() -> None:
    text = "a/b.py:Make:rank=2,kind=x/y.json"
    params = {"rank": 2, "kind": "x/y.json"}
    assert parse_strategy(text, field="x") == StrategyRef(name="a/b.py:Make", params=params)
    assert parse_workload(text, field="x") == WorkloadRef(reference="a/b.py:Make", params=params)
    assert strategy_from({"name": "a/b.py:Make", **params}, field="x") == parse_strategy(text, field="x")


def test_a_plan_is_told_by_its_ending() -> None:
    ref = parse_strategy(" plans/My_Plan.json ", field="x")
    assert (ref.name, ref.is_plan, ref.is_builder) == ("plans/My_Plan.json", True, False)
    assert not parse_strategy("ps:x=a/b.json", field="x").is_plan
    with pytest.raises(UsageError, match=r"x: a plan takes no parameters, got 'k=1'; edit the file"):
        parse_strategy("my.json:k=1", field="x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a name must be letters, digits and dashes, got ''"),
        ("p s", "a name must be letters, digits and dashes, got 'p s'"),
        ("ps:", "parameters must be key=value, got ''"),
        ("ps:staleness", "parameters must be key=value, got 'staleness'"),
        ("ps:staleness=", "parameters must be key=value, got 'staleness='"),
        ("ps:a=1,a=2", "parameter 'a' must be given once"),
    ],
)
def test_a_malformed_strategy_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_strategy(text, field="strategies[1]")
    assert str(caught.value).startswith(f"strategies[1]: {message}")


@pytest.mark.parametrize("text", ["a/b.py", "a/b:make", "a.py:", "a.py:1x", "./x"])
def test_a_file_without_a_factory_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"a file must be given as path\.py:factory, got"):
        parse_workload(text, field="w")
    with pytest.raises(UsageError, match=r"a file must be given as path\.py:Builder, or as plan\.json, got"):
        parse_strategy(text, field="s")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, r"x: must be a name, name:key=value or a mapping with name, got 3 \(int\)"),
        ({"staleness": 2}, r"x\.name: a mapping must have a text under name, got None"),
        (
            {"name": "ps", "staleness": [1]},
            r"x\.staleness: must be a number, text, true, false or null, got list",
        ),
        ({"name": "ps", 3: 1}, "x: a parameter's name must be a word, got 3"),
    ],
)
def test_a_malformed_mapping_is_refused(value: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        strategy_from(value, field="x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ps,,x", "a name between commas"),
        ("", "a name between commas"),
        ("a=1,ps", "a parameter must follow a name"),
    ],
)
def test_a_malformed_list_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        split_list(text, field="x")


def test_infinity_has_no_number_form() -> None:
    assert not isinstance(parse_scalar("inf"), float)
    assert parse_scalar("1e999") == "1e999"
    assert math.isfinite(float(str(parse_scalar("1e308"))))


def test_what_is_no_number_for_its_length_is_text() -> None:
    assert parse_scalar("9" * 5000) == "9" * 5000


@pytest.mark.parametrize("params", [{}, {"input": 96, "classes": 10}])
def test_a_model_of_keras_keeps_its_name(params: dict[str, int]) -> None:
    ref = WorkloadRef(reference="keras:MobileNetV2", params=params)
    assert parse_workload(str(ref), field="workload") == ref
    assert workload_from({"name": "keras:MobileNetV2", **params}, field="workload") == ref
    assert not ref.is_path


@pytest.mark.parametrize("text", ["keras", "keras:", "keras:input=96", "keras:Mobile Net"])
def test_a_model_of_keras_must_be_named(text: str) -> None:
    with pytest.raises(UsageError, match="a model must be named, as keras:MobileNetV2:input=96, got"):
        parse_workload(text, field="workload")
