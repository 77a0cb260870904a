"""A user's Python file, and the class or function in it that makes something: `path/to/file.py:name`.

Its result, a workload or a strategy's builder, is called its kind here; error messages begin with the kind.
"""

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from strategies.user_errors import SHOWS_TRACEBACK, Rules, broken_attribute, line_of_error, quote, reason_of
from workloads.precision import forget_models
from workloads.protocol import TrainStep, Workload, WorkloadError, did_you_mean

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

_MODULE_PREFIX = "stratbench_"
"""Prefix of the module names of users' files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Kind of object that a user's file makes, for error messages.

    Attributes:
        name: noun for the object, such as `workload`.
        maker: noun for the class or function that makes it, such as `factory`.
    """

    name: str
    maker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """A class or function in a user's file; the file exists but has not been run."""

    path: Path
    name: str
    kind: Kind

    def make(self, params: Mapping[str, object] | None) -> object:
        """Run the file and call the maker.

        Args:
            params: keyword arguments; None for a kind without parameters.
        Raises:
            WorkloadError: the file or the call raises, the file has no such maker, or the maker takes other
                arguments.
        """
        return self.loaded(params)()

    def loaded(self, params: Mapping[str, object] | None) -> Callable[[], object]:
        """Run the file and return the call of the maker, which may be made several times.

        Raises:
            WorkloadError: see `make`; errors of the maker are raised by the call.
        """
        maker = self._maker_in(_load(self.path, self.kind))
        values = self._arguments(maker, params)

        def called() -> object:
            try:
                return maker(**values)
            except (Exception, SystemExit) as error:
                raise WorkloadError(describe_failure(error), field="name") from error

        return called

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"

    def _maker_in(self, module: ModuleType) -> Callable[..., object]:
        if not hasattr(module, self.name):
            own = [
                other
                for other, value in vars(module).items()
                if callable(value)
                and not other.startswith("_")
                and getattr(value, "__module__", "") == module.__name__
            ]
            message = (
                f"{self.kind.name} file {self.path} has no {self.kind.maker} {self.name!r}"
                f"{did_you_mean(self.name, own)}"
            )
            raise WorkloadError(message, field="name")
        maker = getattr(module, self.name)
        if not _is_maker(maker):
            received = "None" if maker is None else quote(maker)
            message = (
                f"{self.kind.name} file {self.path}: {self.name} must be a class or function that makes a"
                f" {self.kind.name}, got {received}; return it from a function"
            )
            raise WorkloadError(message, field="name")
        return maker  # type: ignore[no-any-return]

    def _arguments(
        self, maker: Callable[..., object], params: Mapping[str, object] | None
    ) -> dict[str, object]:
        values = {key.replace("-", "_"): value for key, value in (params or {}).items()}
        try:
            parameters = inspect.signature(maker).parameters
        except (TypeError, ValueError):
            return values
        by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        accepted = [key for key, parameter in parameters.items() if parameter.kind in by_keyword]
        takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
        if "batch_size" not in accepted and not takes_all:
            values.pop("batch_size", None)  # Each case batches the examples anew.
        for key in values:
            if key not in accepted and not takes_all:
                message = f"{self} has no parameter {key!r}{did_you_mean(key, accepted)}"
                raise WorkloadError(message, field=key)
        for key in accepted:
            if key not in values and parameters[key].default is inspect.Parameter.empty:
                way_out = "give it a default" if params is None else f"write {self}:{key}=…"
                raise WorkloadError(f"{self} needs a value for {key!r}; {way_out}", field=key)
        return values


def _is_maker(value: object) -> bool:
    """Return False also for models and `tf.function`s, which can be called, but with examples."""
    is_model_or_step = hasattr(value, "train_step") or hasattr(value, "python_function")
    return inspect.isclass(value) or (callable(value) and not is_model_or_step)


def split(reference: str, kind: Kind) -> Maker:
    """Find the file that a reference names.

    Raises:
        WorkloadError: the file is missing, or the reference names no maker.
    """
    location, _, name = reference.rpartition(":")
    if not location or not name.isidentifier():
        message = f"{kind.name} {reference!r} names no {kind.maker}; write path/to/file.py:{kind.maker}"
        raise WorkloadError(message, field="name")
    path = Path(location)
    if path.suffix != ".py":
        message = f"{kind.name} {reference!r}: {location} must be a Python file, ending in .py"
        raise WorkloadError(message, field="name")
    if path.is_dir():
        raise WorkloadError(f"{kind.name} file {location} is a folder; name a file in it", field="name")
    if not path.is_file():
        near = sorted(other.name for other in path.parent.glob("*.py")) if path.parent.is_dir() else []
        hint = did_you_mean(path.name, near) if near else f"; the folder {path.parent} holds no Python file"
        message = f"{kind.name} file {location} does not exist{hint}"
        raise WorkloadError(message, field="name")
    return Maker(path=path, name=name, kind=kind)


def describe_failure(error: BaseException) -> str:
    """Return one line for an exception of the user's code: file, line, type, text and the way out."""
    line = line_of_error(error)
    place = f"{line}: " if line else ""
    return f"{place}{reason_of(error)}; {_way_out(error)}{SHOWS_TRACEBACK}"


def _way_out(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return 'move code that ends the program below `if __name__ == "__main__":`; '
    if isinstance(error, ImportError) and "relative import" in str(error):
        return "import files of the same folder by name, without a dot; "
    return ""


def _load(path: Path, kind: Kind) -> ModuleType:
    """Run the file under a name of its own, its folder importable as for `python file.py`."""
    whole = path.resolve()
    _require_own_modules(path, kind)
    name = f"{_MODULE_PREFIX}{kind.name}_{hashlib.sha256(str(whole).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, whole)
    if spec is None or spec.loader is None:
        message = f"{kind.name} file {path} cannot be imported; it must be a Python file ending in .py"
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
        raise WorkloadError(describe_failure(error), field="name") from error
    return module


def _require_own_modules(path: Path, kind: Kind) -> None:
    """Refuse a file next to a module that has the name of an already imported module of another user's file.

    Raises:
        WorkloadError: there is such a module; an import would return the other one.
    """
    folder = path.resolve().parent
    users = [module for name, module in list(sys.modules.items()) if name.startswith(_MODULE_PREFIX)]
    others = {Path(str(module.__file__)).parent for module in users} - {folder}
    if not others:
        return
    for name, module in sorted(sys.modules.items()):
        is_beside = "." not in name and ((folder / f"{name}.py").is_file() or (folder / name).is_dir())
        for elsewhere in _folders(module) & others if is_beside else ():
            message = (
                f"{kind.name} file {path} must have modules of its own beside it, got {name!r}, which stands "
                f"for that in {elsewhere} already; rename one of the two"
            )
            raise WorkloadError(message, field="name")


def _folders(module: ModuleType) -> set[Path]:
    parts = getattr(module, "__path__", None) or [getattr(module, "__file__", None)]
    return {Path(part).parent for part in parts if isinstance(part, str)}


_KIND = Kind(name="workload", maker="factory")


def is_path(reference: str) -> bool:
    """True if a reference names a file rather than a registered workload."""
    return ":" in reference or "/" in reference or reference.endswith(".py")


def find(reference: str) -> Maker:
    """Find a reference's file and factory; the file exists.

    Raises:
        WorkloadError: the file is missing, or the reference names no factory.
    """
    return split(reference, _KIND)


def make(reference: str, params: Mapping[str, object]) -> Workload:
    """Import the file, call the factory with `params` and check what it returns.

    Raises:
        WorkloadError: any of these fails.
    """
    factory = find(reference)
    check_batch_size(params)
    call = factory.loaded(params)
    returned = call()
    data = _data_beside_step(returned)
    if data is not None:
        batch_size = _batch_size(data, factory)
        forget_models()
        returned = StepAndData(name=factory.name, path=factory.path, batch_size=batch_size, call=call)
    return check_workload(returned, where=str(factory))


def _data_beside_step(returned: object) -> "tf.data.Dataset | None":
    """Dataset of a pair (model or step, dataset), None for anything else; does not import TensorFlow."""
    tensorflow = sys.modules.get("tensorflow")
    match returned:
        case (step, data) if tensorflow is not None and isinstance(data, tensorflow.data.Dataset):
            return data if callable(step) or isinstance(step, TrainStep) else None
    return None


def _described(returned: object) -> str:
    if returned is None:
        return "None"
    if inspect.isclass(returned) or inspect.isroutine(returned):
        kind = "class" if inspect.isclass(returned) else "function"
        return f"the {kind} {getattr(returned, '__name__', '')} alone"
    if isinstance(returned, tuple | list):
        types = ", ".join(type(item).__name__.lstrip("_") for item in returned) or "nothing"
        return f"a {type(returned).__name__} of {types}"
    return f"a value of type {type(returned).__name__}"


def check_workload(returned: object, *, where: str) -> Workload:
    """Return the object as a workload.

    Args:
        returned: result of a factory.
        where: begins the error line.

    Raises:
        WorkloadError: an attribute is missing or has the wrong type; the message names it.
    """
    rules: Rules = {
        "name": (_is_name, "a text that is not empty"),
        "batch_size": (_is_count, "a positive whole number"),
        "flops_per_example": (_is_flops, "a positive number, or None if unknown"),
        "train_step": (callable, "a method that returns a TrainStep or a compiled keras.Model"),
        "dataset": (_takes_seed, "a method that takes a seed and returns a tf.data.Dataset"),
    }
    # A Keras model has a name and a train_step, too.
    if inspect.isclass(returned) or not any(hasattr(returned, name) for name in ("batch_size", "dataset")):
        message = (
            f"{where} must return (model, dataset), (step, dataset) or an object with train_step() and "
            f"dataset(seed), got {_described(returned)}; compile the model, or decorate the step with "
            "@tf.function, and return it with tf.data.Dataset.from_tensor_slices((x, y)).batch(32)"
        )
        raise WorkloadError(message, field="name")
    if (broken := broken_attribute(returned, rules, where)) is not None:
        attribute, message = broken
        raise WorkloadError(message, field=attribute)
    # From Python 3.12 on isinstance does not see attributes that a class computes by name.
    return cast("Workload", returned)


def check_batch_size(params: Mapping[str, object]) -> None:
    """Check the one parameter that every workload has.

    Raises:
        WorkloadError: `batch_size` is given and not a positive whole number.
    """
    for key in ("batch_size", "batch-size"):
        if key in params and not _is_count(params[key]):
            message = f"batch_size must be a positive whole number, got {params[key]!r}"
            raise WorkloadError(message, field="batch_size")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _takes_seed(value: object) -> bool:
    try:
        inspect.signature(value).bind(0)  # type: ignore[arg-type]  # It raises TypeError then.
    except TypeError:
        return False
    except ValueError:
        return True  # Not written in Python.
    return True


def _is_flops(value: object) -> bool:
    if value is None:
        return True
    # An integer, or infinity, can exceed the largest float.
    return isinstance(value, int | float) and value is not True and 0 < value <= sys.float_info.max


@dataclass(frozen=True, kw_only=True, slots=True)
class StepAndData:
    """A model or step and its data, made by a function of a user's file.

    Attributes:
        name: function's name. path: function's file.
        batch_size: batch size of the dataset; a run may use another one, because examples are batched anew.
        call: the function; called once for each step and each seed of the data.
    """

    name: str
    path: Path
    batch_size: int
    call: Callable[[], object]
    flops_per_example: float | None = None

    def train_step(self) -> "TrainStep | Callable[..., tf.Tensor] | keras.Model":
        return self._pair()[0]

    def dataset(self, seed: int) -> "tf.data.Dataset":
        """Examples from the function's batches, with its random numbers drawn from the seed."""
        import keras

        keras.utils.set_random_seed(seed)
        _, data = self._pair()
        forget_models()
        return data.unbatch()

    def _pair(self) -> "tuple[TrainStep | Callable[..., tf.Tensor] | keras.Model, tf.data.Dataset]":
        return self.call()  # type: ignore[return-value]  # Checked when it was first called.


def _batch_size(data: "tf.data.Dataset", factory: Maker) -> int:
    import tensorflow as tf

    parts = tf.nest.flatten(next(iter(data.take(1)), ()))
    sizes = {int(part.shape[0]) if part.shape.rank else 0 for part in parts}
    if len(sizes) == 1 and 0 not in sizes:
        return sizes.pop()
    received = "no batch" if not parts else f"parts of shapes {', '.join(str(p.shape) for p in parts)}"
    message = (
        f"{factory}: the dataset must be batched, as model.fit(dataset) takes it, got {received}; end it "
        "with .batch(32)"
    )
    raise WorkloadError(message, field="dataset")
