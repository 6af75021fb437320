"""The exception tree is as its docstring draws it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from earnest.base import errors
from earnest.base.errors import EarnestError, Reverted

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("attestation", "client", "validator", "training", "deploy", "demo", "cli")
BASES = "EarnestError|ChainError|KeystoreError|StorageError|BadAnswer|EndpointDown"


def tree(kind: type[EarnestError]) -> Iterator[type[EarnestError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


def test_the_docstring_draws_the_whole_tree() -> None:
    drawn = [line.split()[-1] for line in _drawing()]
    assert [kind.__name__ for kind in tree(EarnestError)] == drawn


def test_every_error_is_named_in_the_tree():
    sources = [path.read_text() for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    defined = {name for text in sources for name in re.findall(rf"^class (\w+)\((?:{BASES})\)", text, re.M)}
    drawn = set(re.findall(r"\w+", errors.__doc__ or ""))
    assert len(defined) > 20
    assert defined - drawn == set()


def test_an_error_says_cause_and_fix() -> None:
    error = Reverted("runs: no such seat", "the contract refused", "look again")
    assert (error.cause, error.fix, error.reason) == (
        "the contract refused",
        "look again",
        "runs: no such seat",
    )
    assert str(error) == "the contract refused (look again)"


def _drawing() -> Iterator[str]:
    for line in (errors.__doc__ or "").splitlines():
        if line.strip().startswith("EarnestError"):
            yield "EarnestError"
        elif "──" in line:
            yield line.split("──")[1].split()[0]
