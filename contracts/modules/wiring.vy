# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Wiring
@notice The two contracts that Settlement works with, fixed at deployment.
"""

from interfaces import IStakeVault
from interfaces import ITrainingRuns

VAULT: public(immutable(address))
RUNS: public(immutable(address))


@deploy
def __init__(vault: address, runs: address):
    """
    @param vault The StakeVault, deployed before
    @param runs The TrainingRuns, deployed after: its address follows from the deployer's nonce
    """
    assert vault != empty(address) and runs != empty(address), "settlement: zero address"
    VAULT = vault
    RUNS = runs


@internal
@view
def _vault() -> IStakeVault:
    return IStakeVault(VAULT)


@internal
@view
def _runs() -> ITrainingRuns:
    return ITrainingRuns(RUNS)


@internal
@view
def _params(run: uint256) -> ITrainingRuns.RunParams:
    return staticcall self._runs().run_params(run)  # here once: decoding it is long


@internal
@view
def _owners(run: uint256, role: uint256, round: uint256, first: uint256, count: uint256) -> DynArray[address, 256]:
    return staticcall self._runs().owners_at(run, role, round, first, count)
