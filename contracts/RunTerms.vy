# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Run Terms
@license MIT
@notice Creates runs: checks their parameters and packs them into the words that TrainingRuns keeps. Protocol section 3.
@dev A contract of its own because this happens once per run and would take a tenth of TrainingRuns' size limit.
@custom:security No state, no owner. TrainingRuns takes new runs from this contract only, with the caller as sponsor.
"""

from interfaces import IRunTerms
from interfaces import ITrainingRuns
from modules import constants
from modules import terms

implements: IRunTerms

exports: constants.PROTOCOL_VERSION


RUNS: public(immutable(address))


@deploy
def __init__(runs: address):
    """
    @param runs Address at which TrainingRuns will be deployed.
    """
    assert runs != empty(address), "runs: terms not wired"
    RUNS = runs


@external
def create_run(params: ITrainingRuns.RunParams, uri: String[256]) -> uint256:
    """
    @notice Creates a run and takes rounds * (P + Q) wei of the caller's idle balance in the vault, which the caller must
            have allowed to the settlement contract. The start must be at least one period ahead.
    @param uri Location of recipe, admission list and initial state.
    @return The run's id, counting from 1.
    """
    # On some chains it is always zero, and every seed would be predictable.
    assert blockhash(block.number - 1) != empty(bytes32), "runs: no block hash"
    terms._check(params)
    run: uint256 = extcall ITrainingRuns(RUNS).open_run(
        msg.sender,
        terms._pack(params),
        params.attestation_policy,
        params.rounds * (params.trainer_pool + params.validator_pool),
        params.exit_delay,
    )
    log IRunTerms.RunCreated(
        run=run, sponsor=msg.sender, recipe_hash=params.recipe_hash, params=params, uri=uri
    )
    return run


@external
@pure
def unpack(words: ITrainingRuns.Terms, attestation_policy: bytes32) -> ITrainingRuns.RunParams:
    """
    @return The parameters in a run's words, for TrainingRuns.
    """
    return terms._unpack(words, attestation_policy)
