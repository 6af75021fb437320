"""The probe for P-256 asks the chain itself, whatever code answers at that address."""

from __future__ import annotations

import pytest
from eth.vm.forks.prague import PragueVM

import earnest.deploy.devnet.chain
from earnest.deploy.devnet.p256 import verifies
from earnest.deploy.probe import BAD_SIGNATURE, GOOD_SIGNATURE, has_p256
from tests.deploy.chain import chain_of, fresh_devnet


def test_the_embedded_chain_has_the_precompile() -> None:
    chain = chain_of(fresh_devnet())
    assert has_p256(chain, chain.head())


def test_a_chain_of_the_fork_before_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earnest.deploy.devnet.chain, "_VM", PragueVM)
    chain = chain_of(fresh_devnet())
    assert not has_p256(chain, chain.head())


def test_the_probe_distinguishes_a_check_from_a_constant() -> None:
    assert verifies(GOOD_SIGNATURE)
    assert not verifies(BAD_SIGNATURE)
