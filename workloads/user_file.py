"""A user's own workload: a Python file and the name of the class or function in it that makes one."""

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

from workloads.errors import WorkloadError
from workloads.protocol import Workload
from workloads.suggestion import did_you_mean

_LONGEST_QUOTE = 300


def is_path(reference: str) -> bool:
    """Tell a reference to a file from a registered name."""
    return ":" in reference or "/" in reference or reference.endswith(".py")


def split(reference: str) -> tuple[Path, str]:
    """Return the file, which exists, and the factory's name.

    Raises:
        WorkloadError: when either is missing.
    """
    location, _, factory = reference.rpartition(":")
    if not location or not factory.isidentifier():
        message = f"workload {reference!r} names no factory; write path/to/file.py:factory"
        raise WorkloadError(message, field="name")
    path = Path(location)
    if path.suffix != ".py":
        message = f"workload {reference!r}: {location} must be a Python file, ending in .py"
        raise WorkloadError(message, field="name")
    if not path.is_file():
        near = sorted(other.name for other in path.parent.glob("*.py")) if path.parent.is_dir() else []
        hint = did_you_mean(path.name, near) if near else f"; the folder {path.parent} holds no Python file"
        message = f"workload file {location} does not exist{hint}"
        raise WorkloadError(message, field="name")
    return path, factory


def make(reference: str, params: Mapping[str, object]) -> Workload:
    """Import the file, call the factory with `params` and check what it returns.

    Raises:
        WorkloadError: when any of it fails.
    """
    path, name = split(reference)
    check_batch_size(params)
    factory = _factory(_load(path), path, name)
    values = _arguments(factory, path, name, params)
    try:
        made = factory(**values)
    except (Exception, SystemExit) as error:
        raise WorkloadError(describe_failure(error, path=path), field="name") from error
    return check_workload(made, where=f"{path}:{name}")


def check_workload(made: object, *, where: str) -> Workload:
    """Return the object as a workload.

    Args:
        made: what a factory returned.
        where: begins the error line.

    Raises:
        WorkloadError: that names the attribute which is missing or of the wrong type.
    """
    if inspect.isclass(made) or made is None:
        received = f"the class {made.__name__}" if inspect.isclass(made) else "None"
        message = (
            f"{where} must return a workload object, got {received}; end the factory with return <workload>"
        )
        raise WorkloadError(message, field="name")
    rules: dict[str, tuple[Callable[[object], bool], str]] = {
        "name": (_is_name, "a text that is not empty"),
        "batch_size": (_is_count, "a positive whole number"),
        "flops_per_example": (_is_flops, "a positive number, or None if unknown"),
        "train_step": (callable, "a method that returns a TrainStep"),
        "dataset": (callable, "a method that takes a seed and returns a tf.data.Dataset"),
    }
    for attribute, (holds, rule) in rules.items():
        try:
            value = getattr(made, attribute)
        except AttributeError:
            message = (
                f"{where} returned a {type(made).__name__} without {attribute}; give it {attribute}, {rule}"
            )
            raise WorkloadError(message, field=attribute) from None
        if not holds(value):
            kind = type(made).__name__
            message = f"{where} returned a {kind} whose {attribute} must be {rule}, got {_quote(value)}"
            raise WorkloadError(message, field=attribute)
    if not isinstance(made, Workload):  # The rules above are the protocol's attributes.
        raise AssertionError(where)
    return made


def check_batch_size(params: Mapping[str, object]) -> None:
    """Check the one parameter that every workload has.

    Raises:
        WorkloadError: when it is given and not a positive whole number.
    """
    for key in ("batch_size", "batch-size"):
        if key in params and not _is_count(params[key]):
            message = f"batch_size must be a positive whole number, got {params[key]!r}"
            raise WorkloadError(message, field="batch_size")


def describe_failure(error: BaseException, *, path: Path | None) -> str:
    """Return one line for an exception of the user's code: file, line, type and text.

    Args:
        error: what was raised.
        path: the user's file, whose innermost line is named; None names the innermost line of all.
    """
    if isinstance(error, SyntaxError) and error.filename:
        place, text = f"{error.filename}:{error.lineno}", error.msg
    else:
        place, text = _place(error, path), str(error)
    return f"{place}: {type(error).__name__}: {_one_line(text)}; --debug shows the traceback"


def source_file(workload: object) -> Path | None:
    """Return the file that a workload's class was written in, None if there is none."""
    try:
        return Path(inspect.getfile(type(workload)))
    except (TypeError, OSError):
        return None


def _place(error: BaseException, path: Path | None) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if path is not None and Path(frame.filename) == path.resolve()]
    if own:
        return f"{path}:{own[-1].lineno}"
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else str(path)


def _load(path: Path) -> ModuleType:
    """Run the file under a name of its own, its folder importable as for `python file.py`."""
    whole = path.resolve()
    name = f"stratbench_workload_{hashlib.sha256(str(whole).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, whole)
    if spec is None or spec.loader is None:
        message = f"workload file {path} cannot be imported; it must be a Python file ending in .py"
        raise WorkloadError(message, field="name")
    folder = str(whole.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look their module up by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise WorkloadError(describe_failure(error, path=path), field="name") from error
    return module


def _factory(module: ModuleType, path: Path, name: str) -> Callable[..., object]:
    factory = getattr(module, name, None)
    if factory is None:
        own = [
            other
            for other, value in vars(module).items()
            if callable(value)
            and not other.startswith("_")
            and getattr(value, "__module__", "") == module.__name__
        ]
        message = f"workload file {path} has no factory {name!r}{did_you_mean(name, own)}"
        raise WorkloadError(message, field="name")
    if not callable(factory):
        message = (
            f"workload file {path}: {name} must be a class or function that makes a workload,"
            f" got {_quote(factory)}"
        )
        raise WorkloadError(message, field="name")
    return factory  # type: ignore[no-any-return]


def _arguments(
    factory: Callable[..., object], path: Path, name: str, params: Mapping[str, object]
) -> dict[str, object]:
    values = {key.replace("-", "_"): value for key, value in params.items()}
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return values
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    accepted = [key for key, parameter in parameters.items() if parameter.kind in by_keyword]
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    for key in values:
        if key not in accepted and not takes_all:
            message = f"{path}:{name} has no parameter {key!r}{did_you_mean(key, accepted)}"
            raise WorkloadError(message, field=key)
    for key in accepted:
        if key not in values and parameters[key].default is inspect.Parameter.empty:
            message = f"{path}:{name} needs a value for {key!r}; give {key}: … beside the workload's name"
            raise WorkloadError(message, field=key)
    return values


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_flops(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value > 0)


def _quote(value: object) -> str:
    return f"{type(value).__name__} {_one_line(repr(value))}"


def _one_line(text: str) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= _LONGEST_QUOTE else f"{joined[:_LONGEST_QUOTE]}…"
