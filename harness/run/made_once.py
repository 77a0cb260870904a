"""Values that are made once, and mistakes that are told again."""

from collections.abc import Callable
from typing import Generic, TypeVar

from harness.errors import UNSUPPORTED, CaseError
from harness.provision.failures import USER_ERROR

Value = TypeVar("Value")


class MadeOnce(Generic[Value]):
    """Makes each value once and remembers mistakes as well.

    A user's mistake stays one; anything else may go better next time, and is remembered when it does not.

    Attributes:
        n_made: how often making was tried.
    """

    def __init__(self) -> None:
        self.n_made = 0
        self._known: dict[object, Value] = {}
        self._mistakes: dict[object, CaseError] = {}
        self._has_failed: set[object] = set()

    def get(self, key: object, make: Callable[[], Value]) -> Value:
        """The value of a key, made when it is first asked for."""
        if key in self._mistakes:
            raise self._mistakes[key]
        if key not in self._known:
            try:
                self._known[key] = make()
            except CaseError as error:
                if error.kind in (USER_ERROR, UNSUPPORTED) or key in self._has_failed:
                    self._mistakes[key] = error
                self._has_failed.add(key)
                raise
            finally:
                self.n_made += 1
        return self._known[key]
