"""The stages of a Dockerfile that one target is built from; Docker's classic builder builds all above it.

python3 image_stages.py DOCKERFILE TARGET    the file without the other stages
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

_FROM = re.compile(r"^FROM\s+(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE)
_COPY = re.compile(r"^COPY\s+.*--from=(\S+)", re.IGNORECASE)


def needed_stages(dockerfile: str, target: str) -> str:
    """A Dockerfile with nothing but what a target is built from, in the same order.

    Args:
        dockerfile: the text of the whole.
        target: a named stage.
    Raises:
        ValueError: there is no such stage.
    """
    head, stages = _stages(dockerfile)
    if target not in stages:
        raise ValueError(f"TARGET must be a stage ({', '.join(stages)}), got {target!r}")
    wanted, left = {target}, [target]
    while left:
        for name in _sources(stages[left.pop()]):
            if name in stages and name not in wanted:
                wanted.add(name)
                left.append(name)
    return head + "".join(text for name, text in stages.items() if name in wanted)


def _stages(dockerfile: str) -> tuple[str, dict[str, str]]:
    head, name = "", None
    stages: dict[str, str] = {}
    for line in dockerfile.splitlines(keepends=True):
        start = _FROM.match(line)
        if start:
            name = start[2] or f"{len(stages)}"
            stages[name] = line
        elif name is None:
            head += line
        else:
            stages[name] += line
    return head, stages


def _sources(stage: str) -> Iterator[str]:
    for line in stage.splitlines():
        for pattern in (_FROM, _COPY):
            match = pattern.match(line)
            if match:
                yield match[1]


if __name__ == "__main__":
    sys.stdout.write(needed_stages(Path(sys.argv[1]).read_text(encoding="utf-8"), sys.argv[2]))
