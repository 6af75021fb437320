# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Run Terms
@license MIT
@notice Checks the parameters of a new run and packs them into the words that TrainingRuns keeps. Protocol section 3.
@dev A contract of its own because the checks run once per run and would take a tenth of TrainingRuns' size limit.
@custom:security No state, no owner, no calls: the same parameters at the same time give the same words to anyone.
"""

from interfaces import IRunTerms
from interfaces import ITrainingRuns
from modules import constants
from modules import terms

implements: IRunTerms

exports: constants.PROTOCOL_VERSION



@external
@view
def pack(params: ITrainingRuns.RunParams) -> IRunTerms.Terms:
    """
    @notice Checks parameters, each with its own reason; the start must be at least one period ahead.
    @return The words that hold all of them but the attestation policy.
    """
    terms._check(params)
    return terms._pack(params)
