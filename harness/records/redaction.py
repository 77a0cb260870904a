"""Secrets left out of what is kept or shown: commands, and lines of logs.

What is left out is what such things look like: the value of a name that ends in `token`, `password` and so
on, who signs in to an address, and keys whose issuers gave them a form of their own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TypeGuard

REDACTED = "[redacted]"

_NAMES = (
    r"(?:token|secret|password|passwd|pwd|passphrase|api[-_]?key|access[-_]?key|account[-_]?key|"
    r"private[-_]?key|credentials?|signature|sig|authorization)"
)
# A search may take no longer than text is long. What may repeat without an end is therefore followed by
# nothing that could be missing: where such a repetition begins, there is a match, and none is sought again.
_VALUE = r"(?:\"[^\"\n]*\"?|'[^'\n]*'?|[^\s,;&\"'}\])]+)"
_NAMED = re.compile(
    rf"({_NAMES}[\"']?[ \t]{{0,3}}[=:][ \t]{{0,3}})"
    rf"(?!\[redacted\])(?:(?:bearer|basic|digest)[ \t]{{1,3}})?(?:\[[^\]\n]*\]?|{_VALUE})",
    re.IGNORECASE,
)
_OPTION = re.compile(
    rf"(?<![^\s\"'\[(,=])(-{{1,2}}(?:[a-z0-9]{{1,40}}[-_.]){{0,6}}{_NAMES}"
    rf"(?:[\"'],[ \t]{{0,3}}|[ \t]{{1,3}}))"
    rf"(?!-|\[redacted\]){_VALUE}",
    re.IGNORECASE,
)
_SIGNED_IN = re.compile(r"(://)[^/\s\"']{1,512}@")
_BEARER = re.compile(r"\b(bearer[ \t]{1,3})[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_FORMS = re.compile(
    r"\b(?:gh[opsur]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{20,}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}|sk-[A-Za-z0-9_-]{20,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|AIza[A-Za-z0-9_-]{30,}|eyJ[A-Za-z0-9_-]{8,1024}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?)"
)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL
)
_OPTION_NAME = re.compile(rf"{_NAMES}$", re.IGNORECASE)


def redacted(text: str) -> str:
    """Text without what looks like a secret."""
    text = _PRIVATE_KEY.sub(REDACTED, text)
    text = _SIGNED_IN.sub(rf"\1{REDACTED}@", text)
    text = _NAMED.sub(rf"\1{REDACTED}", text)
    text = _OPTION.sub(rf"\1{REDACTED}", text)
    text = _BEARER.sub(rf"\1{REDACTED}", text)
    return _FORMS.sub(REDACTED, text)


def redacted_document(value: object, *, name: str = "") -> object:
    """Mappings, sequences and scalars without what looks like a secret, by its form or by its name."""
    if isinstance(value, Mapping):
        return {str(key): redacted_document(item, name=str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        # Words of a command are named by the option before them.
        before = ["", *(item if _is_option(item) else "" for item in value)]
        return [
            redacted_document(item, name=name if str(item).startswith("-") else option or name)
            for option, item in zip(before, value, strict=False)
        ]
    if isinstance(value, str):
        return REDACTED if value and _OPTION_NAME.search(name) else redacted(value)
    return value


def redacted_command(words: Sequence[str]) -> str:
    """A command line as a shell takes it, without what looks like a secret."""
    shown: list[str] = []
    before = ""
    for word in words:
        is_value = _is_option(before)
        shown.append(REDACTED if is_value else redacted(word))
        before = word
    return shlex.join(shown)


def _is_option(word: object) -> TypeGuard[str]:
    return isinstance(word, str) and word.startswith("-") and _OPTION_NAME.search(word) is not None
