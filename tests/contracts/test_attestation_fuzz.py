"""Some cases of the fuzzer with every signature computed, and checks of the fuzzer itself."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.contracts.attested import PRECOMPILE
from tests.contracts.fuzzing import Fuzzer, signatures
from tests.contracts.harness import account

SOME = ("P01", "P10", "P12", "S02")


@pytest.fixture(scope="module")
def fuzzer() -> Fuzzer:
    return Fuzzer(SOME)


def test_nothing_altered_is_accepted_and_nothing_crashes(fuzzer: Fuzzer) -> None:
    outcomes = fuzzer.run(400, seed=1)
    assert outcomes.total() == 400
    for kind in fuzzer.kinds:
        assert any(outcome.startswith(kind.__name__) and "refused" in outcome for outcome in outcomes)


def test_the_list_of_signatures_says_what_the_computation_says(fuzzer: Fuzzer) -> None:
    listed = Fuzzer(SOME, table=True)
    assert listed.run(200, seed=2) == fuzzer.run(200, seed=2)
    for original in fuzzer.originals:
        for entry in signatures(original):
            answers = [f.evm.call(PRECOMPILE, entry, account("x"), static=True) for f in (fuzzer, listed)]
            assert answers == [(1).to_bytes(32, "big")] * 2


def test_the_fuzzer_notices_a_registry_that_accepts_too_much(fuzzer: Fuzzer) -> None:
    """Against another original, what passes differs from what was signed."""
    first, second = fuzzer.originals[:2]
    confused = replace(first, raw=second.raw, policy=second.policy, quote=second.quote)
    with pytest.raises(AssertionError):
        for seed in range(200):
            fuzzer.alter_quote(Random(seed), confused)
