"""Check a file that brings up a Ray cluster: `python -m harness.provision.cluster.files.check FILE`.

A file for Ray's launcher is held to Ray's own schema. Ray does not check whether parts of a file agree,
which would show only when machines have been started.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import yaml

from harness.errors import EXIT_OK, HarnessError, UsageError
from harness.records.safe_text import plain

_CHIPS = "google.com/tpu"
_ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
_TOPOLOGY = "cloud.google.com/gke-tpu-topology"


def disagreements(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Dotted path and rule of each part that does not agree with another."""
    if "apiVersion" in document:
        if document.get("kind") != "RayCluster":
            yield "kind", f"must be RayCluster, got {document.get('kind')!r}"
            return
        yield from _of_manifest(document["spec"])
        return
    for name, node_type in document["available_node_types"].items():
        path = f"available_node_types.{name}.node_config"
        node = node_type["node_config"]
        stays = node.get("scheduling", {}).get("onHostMaintenance") == "TERMINATE"
        if node.get("guestAccelerators") and not stays:
            yield path, "a machine with guestAccelerators needs scheduling.onHostMaintenance TERMINATE"
        is_machine = not {"machineType", "disks"}.isdisjoint(node)
        if not is_machine and ("acceleratorType" in node) == ("acceleratorConfig" in node):
            yield path, "needs one of acceleratorType and acceleratorConfig"


def _of_manifest(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    pods = {"spec.headGroupSpec": spec["headGroupSpec"]}
    pods |= {f"spec.workerGroupSpecs.{n}": group for n, group in enumerate(spec["workerGroupSpecs"])}
    for path, group in pods.items():
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod.get("volumes", ())}
        for container in pod["containers"]:
            for mount in container.get("volumeMounts", ()):
                if mount["name"] not in volumes:
                    yield path, f"volumeMounts name {mount['name']!r}, which is none of volumes"
        yield from ((path, rule) for rule in _of_slice(group, pod))


def _of_slice(group: Mapping[str, Any], pod: Mapping[str, Any]) -> Iterator[str]:
    limits = pod["containers"][0]["resources"]["limits"]
    if _CHIPS not in limits:
        return
    selector = pod.get("nodeSelector", {})
    lacking = [key for key in (_ACCELERATOR, _TOPOLOGY) if key not in selector]
    if lacking:
        yield f"a group with {_CHIPS} needs {' and '.join(lacking)} in its nodeSelector"
        return
    n_hosts, n_chips = group.get("numOfHosts", 1), prod(map(int, selector[_TOPOLOGY].split("x")))
    if n_hosts * int(limits[_CHIPS]) != n_chips:
        yield (
            f"numOfHosts {n_hosts} with {limits[_CHIPS]} chips each must have the {n_chips} of "
            f"{selector[_TOPOLOGY]}"
        )


def check(path: Path) -> None:
    """Look through a file for Ray's launcher, which is held to Ray's own schema too, or for KubeRay.

    Raises:
        UsageError: for the first thing wrong, with its dotted path.
    """
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(
            f"{path} must be readable YAML: {' '.join(str(error).split())}", field="file"
        ) from None
    if not isinstance(document, dict):
        raise UsageError(f"{path} must hold a mapping, got {type(document).__name__}", field="file")
    if "apiVersion" not in document:
        _validate_with_ray(document)
    try:
        for path_of_part, rule in disagreements(document):
            raise UsageError(rule, field=path_of_part)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} must be a file as the ready-made ones are, got {type(error).__name__}: {error}",
            field="file",
        ) from None


def _validate_with_ray(document: dict[str, object]) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    try:
        # Ray prints what is wrong as well as raising it.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            validate_config(prepare_config(document))
    except Exception as error:  # noqa: BLE001 - they are of several packages
        raise UsageError(f"Ray refuses it: {next(iter(str(error).splitlines()), '')}", field="file") from None


def main(arguments: list[str]) -> int:
    """Check the file named; return the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m harness.provision.cluster.files.check FILE\n")
        return UsageError.exit_status
    try:
        check(Path(arguments[0]))
    except HarnessError as error:
        sys.stderr.write(plain(f"{arguments[0]}: {error}") + "\n")
        return error.exit_status
    sys.stdout.write(f"{arguments[0]}: its parts agree\n")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
