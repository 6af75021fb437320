"""The tree of errors is drawn in one place, and the drawing is complete."""

import re
from pathlib import Path

from earnest.client import errors

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("client", "validator", "deploy", "cli")
BASES = "EarnestError|ChainError|KeystoreError|StorageError|BadAnswer|EndpointDown"


def test_every_error_is_named_in_the_tree():
    sources = [path.read_text() for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    defined = {name for text in sources for name in re.findall(rf"^class (\w+)\((?:{BASES})\)", text, re.M)}
    drawn = set(re.findall(r"\w+", errors.__doc__ or ""))
    assert len(defined) > 20
    assert defined - drawn == set()
