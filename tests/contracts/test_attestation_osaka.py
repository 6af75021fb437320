"""The registry on a chain whose P-256 precompile is native: verdicts and gas."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from earnest.attestation.formats.quote import parse_quote, quote_calldata
from earnest.attestation.prover.simulated import SimulatedAttester
from tests.anvil import anvil
from tests.attestation.vectors import VECTORS
from tests.contracts.attested import VENDOR, AttestedRun, attest_register_gas, policy_for
from tests.contracts.harness import Contract, account, reverts, system
from tests.contracts.osaka import OPTIONS, OsakaEvm
from tests.contracts.test_attestation_quotes import ON_CHAIN

REGISTER_LIMIT = 190_000


@pytest.fixture(scope="module")
def evm() -> Iterator[OsakaEvm]:
    with anvil(*OPTIONS) as url:
        yield OsakaEvm(url)


@pytest.fixture(scope="module")
def registry(evm: OsakaEvm) -> Contract:
    return evm.deploy("AttestationRegistry", account("runs"), account("settlement"), account("vault"))


@pytest.mark.parametrize("name", VECTORS)
def test_the_native_precompile_gives_the_verdicts_of_the_tests_verifier(
    registry: Contract, name: str
) -> None:
    vector = VECTORS[name]
    original = parse_quote(VECTORS["P01"].quote if name[0] in "MA" else vector.quote)
    quote = parse_quote(vector.quote)
    policy = policy_for(original, workloads=(original.workload(), quote.workload()))
    evidence = quote_calldata(quote, policy.pck_cas)
    if name in ON_CHAIN:
        with reverts(ON_CHAIN[name]):
            registry.check_quote(policy, evidence)
    else:
        assert registry.check_quote(policy, evidence).workload == quote.workload()


def test_a_key_is_registered_for_less_than_190_k_gas(evm: OsakaEvm) -> None:
    with evm.anchor():
        used = attest_register_gas(system(evm))
    print(f"attest_register {used}")
    assert used <= REGISTER_LIMIT


def test_the_whole_way_from_challenge_to_a_key_that_ends(evm: OsakaEvm) -> None:
    with evm.anchor():
        attested = AttestedRun.create(2, system(evm))
        registration = attested.register()
        assert attested.enclave_key()[0] == int(registration.key, 16)
        with reverts("attestation: challenge used"):
            attested.send(*attested.attempt(challenge_block=registration.challenge_block))
        with reverts("attestation: workload not allowed"):
            attested.register(1, attester=SimulatedAttester(VENDOR, code=b"cheaper"))
