"""Check a file that brings up a Ray cluster: `python -m harness.provision.cluster.files.check FILE`.

A file for Ray's launcher is held to Ray's own schema. What Ray does not check is whether parts of a file agree,
which would show only when machines have been started.
"""

import contextlib
import io
import sys
from pathlib import Path

import yaml

from harness.errors import EXIT_OK, HarnessError, UsageError
from harness.provision.cluster.files.agreement import disagreements
from harness.records.legible_text import plain


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
