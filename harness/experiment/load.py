"""Load an experiment from its file and options, or report the first mistake in one line."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Hashable, Mapping, Sequence
from datetime import date
from pathlib import Path

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from harness.errors import UsageError, first_line
from harness.experiment.cluster import connection_around, without_connection
from harness.experiment.model import Experiment, FaultItem, settled
from harness.experiment.references import parse_strategy, parse_workload
from harness.sections import Section, section_in
from harness.written_values import kebab
from strategies.errors import suggestion

_SHIPPED = Path(__file__).parent / "shipped"

_MOST_BYTES = 2**20
_MOST_VALUES = 100_000
YamlValue = object
Document = dict[str, YamlValue]


def shipped() -> tuple[Path, ...]:
    """Paths of the ready-made experiment files, by name."""
    return tuple(sorted(_SHIPPED.glob("*.yaml")))


def summary_of(path: Path) -> str:
    """First sentence of the comment at the top of an experiment file; empty without one."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), path.read_text().splitlines())
    return " ".join(line.strip("# ") for line in lines).partition(". ")[0].rstrip(".")


def find(experiment: str) -> Path:
    """Path of an experiment's file.

    Args:
        experiment: a path, or the name of a shipped file.
    Raises:
        UsageError: neither a file nor a shipped name.
    """
    path = Path(experiment)
    if re.search(r"\.py(:|$)", experiment):
        raise UsageError(
            f"must be a file or a shipped experiment, got {experiment!r}, which is a workload; write "
            f"`quickstart --workloads {experiment}`",
            field="experiment",
        )
    looks_like_path = "/" in experiment or path.suffix in {".yaml", ".yml"}
    if looks_like_path or path.is_file():
        if not path.is_file():
            what = "which is a folder" if path.is_dir() else "which is not there"
            raise UsageError(
                f"must be a file or a shipped experiment, got {experiment!r}, {what}; "
                "`stratbench list experiments` shows the names",
                field="experiment",
            )
        return path
    name = experiment.strip().lower().replace("_", "-")
    names = {item.stem: item for item in shipped()}
    if name not in names:
        got = f"the folder {experiment!r}" if path.is_dir() else repr(experiment)
        raise UsageError(
            f"must be a file or a shipped experiment, got {got}; {suggestion(name, sorted(names))}",
            field="experiment",
        )
    return names[name]


def read(path: Path) -> Document:
    """Read an experiment file as plain data.

    Raises:
        UsageError: unreadable, not YAML, a key given twice, or not a mapping.
    """
    try:
        document = parse(_text(path))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise UsageError(
            f"{where}: must be YAML: {error.problem or 'cannot be read'}", field="experiment"
        ) from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(
            f"{path} must be a readable text file: {first_line(str(error))}", field="experiment"
        ) from None
    if not isinstance(document, dict):
        raise UsageError(
            f"{path} must hold a mapping with workloads and strategies, got {type(document).__name__}",
            field="experiment",
        )
    document.setdefault("name", path.stem)
    return document


def _text(path: Path) -> str:
    n_bytes = path.stat().st_size
    if n_bytes > _MOST_BYTES:
        raise UsageError(
            f"{path} must be an experiment of at most {_MOST_BYTES} bytes, got {n_bytes}; name another file",
            field="experiment",
        )
    return path.read_text(encoding="utf-8")


def parse(text: str) -> YamlValue:
    """Read one YAML document.

    Raises:
        yaml.YAMLError: the text is not valid YAML, has more than plain data, or is too large.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        # Before construction: a kilobyte of anchors can expand to more values than fit in memory.
        _count(node, {}, set())
        return loader.construct_document(node)
    except RecursionError:
        raise yaml.YAMLError("must not be nested hundreds of times") from None
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Safe loader that refuses duplicate keys, which YAML would silently overwrite.

    It reads 1e-3 and 1.0e12 as numbers, like YAML 1.2 (section 10.2.1.4), unlike PyYAML.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> YamlValue:  # noqa: FBT001, FBT002 - the base class's signature
        try:
            return super().construct_object(node, deep=deep)
        except ValueError as error:
            raise _error(str(error), node) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, YamlValue]:  # noqa: FBT001, FBT002 - the base class's signature
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = key_node.value if _is_merge(key_node) else self.construct_object(key_node, deep=True)
            try:
                is_known = key in seen
            except TypeError:
                raise _error("a key must be text, got a list or mapping", key_node) from None
            if is_known:
                raise _error(f"key {key!r} is given twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def _count(node: yaml.Node, known: dict[yaml.Node, int], above: set[yaml.Node]) -> int:
    """Number of values of a node, with repetitions by anchors.

    Args:
        known: counts of nodes so far. above: ancestors of this node.
    """
    if node in above:
        raise _error("an anchor must not be inside of itself", node)
    if node not in known:
        above.add(node)
        pairs = isinstance(node, yaml.MappingNode)
        parts = [part for pair in node.value for part in pair] if pairs else node.value
        below = [] if isinstance(node, yaml.ScalarNode) else parts
        known[node] = 1 + sum(_count(part, known, above) for part in below)
        above.remove(node)
    if known[node] > _MOST_VALUES:
        raise _error(f"must expand to at most {_MOST_VALUES} values, anchors repeated", node)
    return known[node]


def _is_merge(node: yaml.Node) -> bool:
    return bool(node.tag == "tag:yaml.org,2002:merge")


def _error(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def load_experiment(
    experiment: str,
    *,
    settings: Sequence[str] = (),
    overrides: Mapping[str, object] | None = None,
    plan: str | None = None,
    surroundings: Mapping[str, str] | None = None,
) -> Experiment:
    """Find, read, override and resolve an experiment.

    Args:
        experiment: a path, or the name of a shipped file.
        settings: `dotted.path=value` each, as given with --set; they replace values of the file.
        overrides: dotted path → value from other options; they replace settings.
        plan: path of an edited plan to run beside the strategies.
        surroundings: environment variables that name the cluster of this process.
    Raises:
        UsageError: the file or the options are wrong; names the field.
    """
    return laid_over(
        read(find(experiment)),
        settings=settings,
        overrides=overrides,
        plan=plan,
        surroundings=surroundings,
    )


def laid_over(
    document: Mapping[str, YamlValue],
    *,
    settings: Sequence[str] = (),
    overrides: Mapping[str, object] | None = None,
    plan: str | None = None,
    surroundings: Mapping[str, str] | None = None,
    runs: bool = True,
) -> Experiment:
    """Override and resolve an experiment document.

    Args:
        document: content of an experiment file. For the other arguments, see `load_experiment`.
        runs: False for cases that are only predicted, on workers that no provider need be able to start.
    Raises:
        UsageError: the document or the options are wrong; names the field.
    """
    values = parse_settings(settings)
    values.update(overrides or {})
    if "workloads" in values:
        values["workloads"] = _with_parameters(values["workloads"], document.get("workloads"))
    notes = _left_out(document, overrides or {})
    document = _overlaid(without_connection(document, values), values)
    document = _overlaid(document, connection_around(document, surroundings or {}))
    if plan is not None:
        listed = document.get("strategies", [])
        document["strategies"] = [*(listed if isinstance(listed, list) else [listed]), plan]
    replaced = any(path.split(".")[0] == "strategies" for path in values)
    return resolve(document, strategies_replaced=replaced, runs=runs).with_notes(*notes)


def _with_parameters(chosen: YamlValue, listed: YamlValue) -> YamlValue:
    """Replace each name without parameters by the file's workloads of that name.

    Args:
        chosen: workloads given as an option. listed: workloads of the file.
    """
    if not isinstance(chosen, list | tuple) or not isinstance(listed, list):
        return chosen
    with_parameters: dict[str, list[YamlValue]] = {}
    for item in listed:
        if isinstance(item, dict) and isinstance(item.get("name"), str):
            with_parameters.setdefault(kebab(item["name"]), []).append(item)
    entries = [
        with_parameters.get(kebab(name), [name]) if isinstance(name, str) else [name] for name in chosen
    ]
    return list(itertools.chain.from_iterable(entries))


def parse_settings(texts: Sequence[str]) -> dict[str, YamlValue]:
    """Read `dotted.path=value` texts.

    Returns:
        Dotted path → value.
    Raises:
        UsageError: a text has another form, or a path is set twice.
    """
    values: dict[str, YamlValue] = {}
    for text in texts:
        path, value = _parse_setting(text)
        if path in values:
            raise UsageError("must be set once, got it again; drop one", field=f"set {path}")
        values[path] = value
    return values


def _left_out(document: Mapping[str, YamlValue], overrides: Mapping[str, object]) -> tuple[str, ...]:
    """Values of a file that options override indirectly."""
    measure = document.get("measure")
    until = measure.get("until") if isinstance(measure, Mapping) else None
    if until is None or overrides.get("measure.until", until) is not None:
        return ()
    return ("measure.until is ignored, because the number of repeats was given",)


def resolve(
    document: Mapping[str, object], *, strategies_replaced: bool = False, runs: bool = True
) -> Experiment:
    """Read an experiment from its document.

    Args:
        document: content of the file.
        strategies_replaced: True if options replaced the file's list, so that its baseline may be missing.
        runs: False for cases that are only predicted.
    Raises:
        UsageError: for the first error, with its dotted path.
    """
    try:
        experiment = Experiment.model_validate(document)
    except ValidationError as error:
        raise _usage_error(error.errors(include_url=False), document) from None
    return settled(experiment, strategies_replaced=strategies_replaced, runs=runs)


def _overlaid(document: Mapping[str, YamlValue], values: Mapping[str, YamlValue]) -> Document:
    changed: Document = copy.deepcopy(dict(document))
    for path, value in values.items():
        _set(changed, path, value)
    return changed


def _parse_setting(text: str) -> tuple[str, YamlValue]:
    path, equals, value = text.partition("=")
    if not equals or not all(piece.strip() for piece in path.split(".")):
        raise UsageError(
            f"must be dotted.path=value, got {text!r}; write for example measure.steps=20", field="set"
        )
    try:
        return path.strip(), parse(value)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or first_line(str(error))
        raise UsageError(
            f"the value must be YAML, got {value[:80]!r} ({problem}); quote it", field=f"set {path.strip()}"
        ) from None


def _set(document: Document, path: str, value: YamlValue) -> None:
    *parents, last = path.split(".")
    holder: YamlValue = document
    for piece in parents:
        if isinstance(holder, dict) and holder.get(piece) is None:
            holder[piece] = {}
        inner = _get(holder, piece, path)
        if isinstance(holder, list) and isinstance(inner, str):
            inner = holder[int(piece)] = _as_mapping(inner, parents[0], path)
        holder = inner
    if isinstance(holder, list):
        _get(holder, last, path)
        holder[int(last)] = value
    elif isinstance(holder, dict):
        holder[last] = value
    else:
        raise UsageError(f"{last!r} must be inside a mapping, got {holder!r} there", field=path)


def _as_mapping(text: str, section: str, path: str) -> YamlValue:
    """A workload or a strategy that is written as text, such as `ps:staleness=2`, with its parameters."""
    if section == "workloads":
        workload = parse_workload(text, field=path)
        return {"name": workload.reference, **workload.params}
    if section == "strategies":
        strategy = parse_strategy(text, field=path)
        return {"name": strategy.name, **strategy.params}
    return text


def _get(holder: YamlValue, piece: str, path: str) -> YamlValue:
    if isinstance(holder, dict) and piece in holder:
        return holder[piece]
    if isinstance(holder, list):
        if piece.isdecimal() and int(piece) < len(holder):
            return holder[int(piece)]
        raise UsageError(f"{piece!r} must be an index below {len(holder)}", field=path)
    raise UsageError(f"{piece!r} must be inside a mapping, got {holder!r} there", field=path)


def _usage_error(errors: list[ErrorDetails], document: object) -> UsageError:
    # A misspelt key often also leaves a required one missing: report the misspelling.
    first = min(errors, key=lambda item: item["type"] != "extra_forbidden")
    location = first["loc"]
    if first["type"] == "extra_forbidden":
        section = _section_at(location[:-1])
        known = map(section.key_of, section.model_fields)
        key = str(location[-1])
        return UsageError(f"unknown key, {suggestion(key, sorted(known))}", field=_path(location, document))
    if first["type"] == "usage":
        context = first["ctx"]
        return UsageError(context["message"], field=_path(location, document) + context["below"])
    if first["type"] == "missing":
        return UsageError(
            "must be given, got nothing; see the quickstart experiment", field=_path(location, document)
        )
    is_key_text = location[-1:] == ("[key]",) and first["type"].startswith("string_")
    if first["type"] == "invalid_key" or is_key_text:
        got = first["input"]
        above = location[:-2] if is_key_text else location[:-1]
        path = _path((*above, "[key]"), document) or "experiment"
        if isinstance(got, str):
            return UsageError(f"keys {_rule(first['msg'])}, got {got!r}; name it", field=path)
        return UsageError(f"keys must be text, got {got!r} ({type(got).__name__}); quote it", field=path)
    path = _path(location, document)
    if first["type"] == "model_type":
        rule = "must be a mapping"
    else:
        # A value with two possible types gives one error for each.
        rules = [_rule(item["msg"]) for item in errors if _path(item["loc"], document) == path]
        rule = " or ".join(dict.fromkeys(rules)).replace(" or must be", " or")
    received = first["input"]
    is_unquoted = first["type"] == "string_type" and isinstance(received, int | float | date)
    kind = "" if received is None else f" ({type(received).__name__})"
    got = f"{'null' if received is None else repr(received)[:80]}{kind}"
    return UsageError(f"{rule}, got {got}{'; quote it' if is_unquoted else ''}", field=path)


def _section_at(location: tuple[int | str, ...]) -> type[Section]:
    section: type[Section] = Experiment
    for piece in location:
        field = section.model_fields.get(str(piece))
        section = (field and section_in(field.annotation)) or section
    return FaultItem if location[:1] == ("faults",) else section


def plain_rule(message: str) -> str:
    """Message of a validation, with plain words for numbers."""
    message = re.sub(", unable to parse string as an? (integer|number)", "", message)
    return message.replace("a valid integer", "a whole number").replace("a valid number", "a number")


def _rule(message: str) -> str:
    message = message.replace("valid tuple", "valid list")
    rule = re.sub(r"^(Input|Tuple|String|Value) should", "must", plain_rule(message))
    return re.sub(r" after validation, not \d+$", "", rule)


def _path(location: tuple[int | str, ...], document: object) -> str:
    """Path of a field as in the file, without the model's internal steps."""
    path = ""
    here = document
    for position, piece in enumerate(location):
        last = position == len(location) - 1
        if isinstance(piece, int):
            if isinstance(here, list):
                path += f"[{piece}]"
                here = here[piece] if piece < len(here) else None
            elif isinstance(here, Mapping) and (piece in here or str(piece) in here):
                path += f".{piece}"
                here = here.get(piece, here.get(str(piece)))
        elif isinstance(here, Mapping) and piece != "[key]" and (piece in here or last):
            path += f".{piece}" if path else piece
            here = here.get(piece)
    return path
