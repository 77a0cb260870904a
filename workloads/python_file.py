"""A user's Python file, and the class or function in it that makes something: `path/to/file.py:name`.

What it makes, a workload or a strategy's builder, is called its kind here; errors begin with it.
"""

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from strategies.user_errors import line_of_error, reason_of
from workloads.errors import WorkloadError
from workloads.suggestion import did_you_mean

_LONGEST_QUOTE = 300
_MODULE_PREFIX = "stratbench_"
"""Begins the names of users' files among modules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What is made, for messages.

    Attributes:
        name: what the reference as a whole stands for.
        maker: what its last part is called.
    """

    name: str
    maker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """A class or function of a user's file; the file exists, nothing of it has run yet."""

    path: Path
    name: str
    kind: Kind

    def make(self, params: Mapping[str, object] | None) -> object:
        """Run the file and call the maker.

        Args:
            params: keyword arguments; None for a kind that takes none.
        Raises:
            WorkloadError: when the file or the call raises, there is no such maker, or it takes other
                arguments.
        """
        return self.loaded(params)()

    def loaded(self, params: Mapping[str, object] | None) -> Callable[[], object]:
        """Run the file; the call of the maker, which may be made several times.

        Raises:
            WorkloadError: as `make` does.
        """
        maker = self._found(_load(self.path, self.kind))
        values = self._arguments(maker, params)

        def called() -> object:
            try:
                return maker(**values)
            except (Exception, SystemExit) as error:
                raise WorkloadError(describe_failure(error), field="name") from error

        return called

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"

    def _found(self, module: ModuleType) -> Callable[..., object]:
        maker = getattr(module, self.name, None)
        if maker is None:
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
        if not callable(maker):
            message = (
                f"{self.kind.name} file {self.path}: {self.name} must be a class or function that makes a"
                f" {self.kind.name}, got {quote(maker)}"
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
        for key in values:
            if key not in accepted and not takes_all:
                message = f"{self} has no parameter {key!r}{did_you_mean(key, accepted)}"
                raise WorkloadError(message, field=key)
        for key in accepted:
            if key not in values and parameters[key].default is inspect.Parameter.empty:
                way_out = "give it a default" if params is None else f"give {key}: … beside its name"
                raise WorkloadError(f"{self} needs a value for {key!r}; {way_out}", field=key)
        return values


def split(reference: str, kind: Kind) -> Maker:
    """Find the file that a reference names.

    Raises:
        WorkloadError: when it is missing, or no maker is named.
    """
    location, _, name = reference.rpartition(":")
    if not location or not name.isidentifier():
        message = f"{kind.name} {reference!r} names no {kind.maker}; write path/to/file.py:{kind.maker}"
        raise WorkloadError(message, field="name")
    path = Path(location)
    if path.suffix != ".py":
        message = f"{kind.name} {reference!r}: {location} must be a Python file, ending in .py"
        raise WorkloadError(message, field="name")
    if not path.is_file():
        near = sorted(other.name for other in path.parent.glob("*.py")) if path.parent.is_dir() else []
        hint = did_you_mean(path.name, near) if near else f"; the folder {path.parent} holds no Python file"
        message = f"{kind.name} file {location} does not exist{hint}"
        raise WorkloadError(message, field="name")
    return Maker(path=path, name=name, kind=kind)


def describe_failure(error: BaseException) -> str:
    """Return one line for an exception of the user's code: file, line, type and text."""
    line = line_of_error(error)
    return f"{f'{line}: ' if line else ''}{reason_of(error)}; --debug shows the traceback"


def quote(value: object) -> str:
    """A value and its type, in one line that is not too long."""
    return f"{type(value).__name__} {_one_line(repr(value))}"


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
    """Refuse a file beside which is a module whose name stands for one beside another user's file by now.

    Raises:
        WorkloadError: there is one, in place of which the file would be given the other's.
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
    """Where a module, or each part of a package, is."""
    parts = getattr(module, "__path__", None) or [getattr(module, "__file__", None)]
    return {Path(part).parent for part in parts if isinstance(part, str)}


def _one_line(text: str) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= _LONGEST_QUOTE else f"{joined[:_LONGEST_QUOTE]}…"
