"""Invariant 7: `protocol/` and the contracts give the same answer to the last wei."""

import os
from collections.abc import Iterator
from random import Random

import pytest

from tests.contracts.agreement import World, agree, build_worlds
from tests.contracts.harness import System

ROUNDS = int(os.environ.get("EARNEST_AGREEMENT_ROUNDS", "60"))


@pytest.fixture(scope="module")
def worlds(deployed: System) -> Iterator[list[World]]:
    with deployed.evm.anchor():
        yield build_worlds(deployed)


def test_contracts_and_reference_agree_on_generated_rounds(worlds: list[World]) -> None:
    outcomes = [agree(worlds[i % len(worlds)], Random(i)) for i in range(ROUNDS)]
    assert any(outcome.void for outcome in outcomes)
    assert any(outcome.judged for outcome in outcomes)
    assert any(verdict in (3, 4, 5, 6) for outcome in outcomes for verdict in outcome.verdicts)
