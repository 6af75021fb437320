"""docs/reverts.md, to which error messages point, explains every reason of every contract and no others."""

import re

import pytest

from tests.contracts.harness import CONTRACTS

PAGE = (CONTRACTS.parent / "docs" / "reverts.md").read_text()
SOURCES = [p for p in sorted(CONTRACTS.rglob("*.vy")) if p.parent.name != "testing"]
REASON = re.compile(r'"((?:vault|runs|settlement|attestation|pool): [^"]+)"')
ROW = re.compile(r"^\| `((vault|runs|settlement|attestation|pool): [^`]+)` \| (.+) \| (.+) \|$", re.M)
SECTIONS = {
    "vault": "StakeVault",
    "runs": "TrainingRuns",
    "settlement": "Settlement",
    "attestation": "AttestationRegistry",
    "pool": "BondPool",
}


def test_every_reason_has_its_row_and_every_row_its_reason() -> None:
    given = [reason for path in SOURCES for reason in REASON.findall(path.read_text())]
    assert sorted(given) == sorted(set(given))
    assert [row[0] for row in ROW.findall(PAGE)] == sorted(given, key=_place)


@pytest.mark.parametrize("prefix", SECTIONS)
def test_reasons_stand_under_their_contract(prefix: str) -> None:
    section = PAGE.split(f"\n## {SECTIONS[prefix]}\n")[1].split("\n## ")[0]
    assert {row[1] for row in ROW.findall(section)} == {prefix}


def test_assertions_without_a_reason_are_the_compilers_only() -> None:
    for path in SOURCES:
        bare = re.findall(r"^ *assert [^\n]*$", path.read_text(), re.M)
        assert [line for line in bare if '"' not in line and not line.endswith("(")] == [
            "    assert met, reason"
        ] * path.read_text().count("assert met, reason")


def _place(reason: str) -> tuple[int, str]:
    return list(SECTIONS).index(reason.split(":", maxsplit=1)[0]), reason
