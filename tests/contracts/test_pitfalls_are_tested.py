"""docs/pitfalls.md names only tests that exist."""

import re

from tests.contracts.harness import CONTRACTS

ROOT = CONTRACTS.parent
NAMED = re.findall(r"`(?:([\w/]+)/)?(\w+)::(\w+)`", (ROOT / "docs" / "pitfalls.md").read_text())


def test_every_test_that_the_page_names_exists() -> None:
    missing = []
    for folder, file, name in NAMED:
        if len(name) > 1:  # `a::b` explains the notation
            path = ROOT / "tests" / (folder or "contracts") / f"test_{file}.py"
            if not re.search(rf"^(def test_|class ){name}\b", path.read_text(), re.M):
                missing.append(f"{path.name}::{name}")
    assert missing == []
    assert len(NAMED) > 50
