"""Conditions of predictions: an experiment whose workers need not exist, and those that measure for it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence

from harness.canonical import JsonValue
from harness.errors import UsageError
from harness.experiment.cases import expand, matches
from harness.experiment.cluster import Cluster
from harness.experiment.load import laid_over, load_experiment, parse_settings
from harness.experiment.model import Experiment, Matrix

KEYS = (
    "cluster.cores_per_worker",
    "cluster.link.rate_mbit",
    "cluster.price_per_hour",
    "cluster.replicas_per_worker",
    "cluster.workers",
    "faults",
    "measure.batch",
    "strategies",
    "workloads",
)
"""Keys of the experiment that predictions depend on, besides those of the measurement."""
_PROFILING: Mapping[str, object] = {
    "name": "profile",
    "strategies": ["none"],
    "cluster.workers": [1, 2],
    "compare.baseline": None,
    "measure.repeats": 1,
    "measure.until": None,
    "measure.trace": True,
    "measure.aa": False,
    "measure.observer": False,
    "measure.exposed_comm": False,
    "cluster.link": {"rate_mbit": None},
    "faults": [],
    "matrix": {"include": [], "exclude": []},
}
"""Values of the experiment that profiles a workload: two numbers of examples per worker."""
_NOT_OF_MACHINES = ("workers", "replicas_per_worker", "memory_per_worker", "link", "price_per_hour")
"""Keys of a cluster that do not change what an exchange costs; the others are those of a fitting probe."""


def conditions(
    document: Mapping[str, object],
    *,
    settings: Sequence[str] = (),
    overrides: Mapping[str, object] | None = None,
    of_run: bool,
) -> Experiment:
    """Read an experiment with changes as the conditions of predictions.

    Args:
        document: an experiment, or that of a run.
        settings: `dotted.path=value` each; of a run's experiment, only `KEYS` can be changed.
        overrides: dotted path → value from other options.
        of_run: True for the experiment of a run, whose measurement is over.
    Raises:
        UsageError: a key or a value is wrong, or cannot be predicted.
    """
    for path in parse_settings(settings):
        is_fixed = of_run or _is_within(path, _PROFILING)
        if is_fixed and not _is_within(path, KEYS):
            raise UsageError(
                f"changes no prediction; use one of {', '.join(KEYS)}, or their parts", field=f"set {path}"
            )
    spec = laid_over(document, settings=settings, overrides=overrides, runs=False)
    cluster = spec.cluster
    if len(cluster.cores_per_worker) > 1:
        cores = ", ".join(map(str, cluster.cores_per_worker))
        raise UsageError(
            f"must be one number for predictions, got {cores}; choose it with --set "
            f"cluster.cores_per_worker={cluster.cores_per_worker[0]}",
            field="cluster.cores_per_worker",
        )
    if cluster.replicas_per_worker != (1,):
        replicas = ", ".join(map(str, cluster.replicas_per_worker))
        raise UsageError(
            f"must be 1 for predictions, got {replicas}: several replicas of a worker are not simulated; add "
            "--set cluster.replicas_per_worker=1",
            field="cluster.replicas_per_worker",
        )
    if cluster.link.workers:
        raise UsageError(
            "must be empty for predictions, in which all links have one rate; predict from an experiment or "
            "a run without it",
            field="cluster.link.workers",
        )
    return spec


def profiling(
    document: Mapping[str, object], *, settings: Sequence[str], surroundings: Mapping[str, str]
) -> Experiment:
    """Experiment that profiles the workloads of another one on its workers.

    Raises:
        UsageError: its workers are of several kinds.
    """
    spec = laid_over(document, settings=settings, overrides=_PROFILING, surroundings=surroundings)
    for key in ("provider", "device", "image"):
        values = getattr(spec.cluster, key)
        if len(values) > 1:
            raise UsageError(
                f"must be one for predictions, got {', '.join(map(str, values))}; choose it with --set "
                f"cluster.{key}={values[0]}",
                field=f"cluster.{key}",
            )
    return spec


def probe_experiment(
    surroundings: Mapping[str, str],
    *,
    settings: Sequence[str] = (),
    overrides: Mapping[str, object] | None = None,
) -> Experiment:
    """Experiment of a probe, with two workers only where four may not be there, unless a setting has others.

    Args:
        settings: `dotted.path=value` each. overrides: dotted path → value.
    Raises:
        UsageError: a key or a value is wrong.
    """
    paths = parse_settings(settings)
    spec = load_experiment("probe", settings=settings, overrides=overrides, surroundings=surroundings)
    cluster = spec.cluster
    is_scarce = "cluster" in cluster.provider or "gpu" in cluster.device or cluster.cores_per_worker != (1,)
    if is_scarce and not is_set("cluster.workers", paths):
        two = {**(overrides or {}), "cluster.workers": 2}
        spec = load_experiment("probe", settings=settings, overrides=two, surroundings=surroundings)
    return spec if any(_is_within(path, ("matrix",)) for path in paths) else _without_idle_filters(spec)


def _without_idle_filters(spec: Experiment) -> Experiment:
    """The experiment without filters of its matrix that match no case."""
    cases = expand(spec.model_copy(update={"matrix": Matrix()}))
    exclude = tuple(item for item in spec.matrix.exclude if any(matches(item, case) for case in cases))
    return spec.model_copy(update={"matrix": Matrix(exclude=exclude)})


def probing(cluster: Cluster, surroundings: Mapping[str, str]) -> Experiment:
    """Experiment that measures what exchanges cost on the workers of another one."""
    return probe_experiment(surroundings, overrides=_settings_of(cluster))


def probe_command(spec: Experiment) -> str:
    """The command that runs such an experiment."""
    values = _settings_of(spec.cluster)
    settings = (
        f"{path}={value if isinstance(value, str) else json.dumps(value)}" for path, value in values.items()
    )
    return " ".join(["stratbench probe", *(f"--set {shlex.quote(setting)}" for setting in settings)])


def _settings_of(cluster: Cluster) -> dict[str, JsonValue]:
    """Dotted path → value of the settings in which a probe on such workers differs from the usual one."""
    usual = Cluster().model_dump(mode="json", by_alias=True)
    return {
        f"cluster.{key}": value
        for key, value in cluster.model_dump(mode="json", by_alias=True).items()
        if key not in _NOT_OF_MACHINES and value != usual.get(key)
    }


def is_set(key: str, settings: Mapping[str, object]) -> bool:
    """True if settings contain a key, a part of it, or a section that contains it.

    Args:
        key: dotted path. settings: dotted path → value.
    """
    return any(
        _is_within(path, (key,)) or (_is_within(key, (path,)) and _contains(value, key[len(path) + 1 :]))
        for path, value in settings.items()
    )


def _contains(section: object, path: str) -> bool:
    name, _, rest = path.partition(".")
    return isinstance(section, Mapping) and name in section and (not rest or _contains(section[name], rest))


def _is_within(path: str, keys: Mapping[str, object] | Sequence[str]) -> bool:
    return any(path == key or path.startswith(f"{key}.") for key in keys)
