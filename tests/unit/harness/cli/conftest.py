"""The registries and the pipeline of the command line, replaced by small ones."""

import sys
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace

import pytest
from called import Pipeline

import harness
import strategies
import strategies.registry as real
from strategies.errors import StrategyError

_STRATEGIES = ("single", "none", "ps", "all-reduce", "tf-multi-worker-mirrored")


@pytest.fixture(autouse=True)
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    def resolve(name: str, params: Mapping[str, object]) -> object:
        if name not in _STRATEGIES:
            raise StrategyError(f"strategy {name!r} is not known; known: {', '.join(_STRATEGIES)}")
        return SimpleNamespace(name=name), params

    registry = ModuleType("strategies.registry")
    # What is imported meanwhile, and stays, must find the real names.
    vars(registry).update({name: value for name, value in vars(real).items() if not name.startswith("__")})
    registry.resolve = resolve  # type: ignore[attr-defined]
    registry.describe = lambda: [  # type: ignore[attr-defined]
        {
            "name": name,
            "summary": "s",
            "class": "exact",
            "params": [{"name": "sync", "type": "bool", "default": True}],
        }
        for name in _STRATEGIES
    ]
    fake = Pipeline()
    replaced = ((strategies, "registry", registry), (harness, "pipeline", fake), (harness, "foresight", fake))
    for package, name, module in replaced:
        monkeypatch.setitem(sys.modules, f"{package.__name__}.{name}", module)
        monkeypatch.setattr(package, name, module, raising=False)
    return fake
