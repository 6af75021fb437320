# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Platforms
@license MIT
@notice Limits on keys and bond of one physical machine in a run. Protocol section 11.
@dev A key is one word: trainer (160 bits), expiry (40), bond in units of 2**u wei, rounded down (48), u (8). u is 0, 16, 32,
     .., the first with which the policy's limit fits: tokens of any decimals are counted to 2**-32 of the limit. Words
     are never erased, only taken over, so the first empty one ends the list. A key that was revoked counts until it
     would have expired.
"""

from interfaces import IAttestationRegistry
from modules import constants

MAX_KEYS: constant(uint256) = 16
EXPIRY: constant(uint256) = 160
BOND: constant(uint256) = 200
BOND_BITS: constant(uint256) = 48
UNIT_STEP: constant(uint256) = 16
UNIT: constant(uint256) = 248
EXPIRY_MASK: constant(uint256) = 2**40 - 1
BOND_MASK: constant(uint256) = 2**48 - 1

_keys: HashMap[uint256, HashMap[bytes32, uint256[MAX_KEYS]]]     # run -> platform


@internal
@pure
def _unit(bond_limit: uint256) -> uint256:
    """
    @return Bits by which bonds are shifted before they are counted.
    """
    unit: uint256 = 0
    for i: uint256 in range(5):
        if bond_limit >> (BOND_BITS + unit) == 0:
            break
        unit += UNIT_STEP
    return unit


@internal
def _take(
    run: uint256,
    platform: bytes32,
    trainer: address,
    expiry: uint256,
    oldest: uint256,
    limit: uint256,
    bond: uint256,
    bond_limit: uint256,
):
    """
    @notice Gives the trainer one of the platform's `limit` places in the run: its own, an expired or an empty one.
    @param oldest t0 of the oldest round still open to reveals. A key that expired later may sign for a round that the
           trainer's new key signs for too, and so keeps its place: in no round do more than `limit` count.
    @param bond The trainer's bond in wei; 0 without a limit.
    @param bond_limit Largest sum of the bonds of all of the platform's keys, in wei; 0: no limit.
    """
    place: uint256 = MAX_KEYS
    unit: uint256 = self._unit(bond_limit)
    units: uint256 = bond >> unit
    together: uint256 = units
    for i: uint256 in range(min(limit, MAX_KEYS), bound=MAX_KEYS):
        word: uint256 = self._keys[run][platform][i]
        if word & constants.ADDRESS_MASK == convert(trainer, uint256):
            place = i
        elif (word >> EXPIRY) & EXPIRY_MASK > oldest:
            together += (word >> BOND) & BOND_MASK
        elif place == MAX_KEYS:
            place = i
        if word == 0:
            break
    assert place != MAX_KEYS, "attestation: platform is full"
    assert together <= bond_limit >> unit, "attestation: platform bond too high"
    self._keys[run][platform][place] = convert(trainer, uint256) | (expiry << EXPIRY) | (units << BOND) | (unit << UNIT)


@internal
@view
def _counted(run: uint256, platform: bytes32, trainer: address) -> uint256:
    """
    @return Units of bond counted for the trainer's newest key on the platform.
    """
    for i: uint256 in range(MAX_KEYS):
        word: uint256 = self._keys[run][platform][i]
        if word == 0:
            break
        if word & constants.ADDRESS_MASK == convert(trainer, uint256):
            return (word >> BOND) & BOND_MASK
    return 0


@internal
@view
def _list(run: uint256, platform: bytes32) -> DynArray[IAttestationRegistry.PlatformKey, MAX_KEYS]:
    found: DynArray[IAttestationRegistry.PlatformKey, MAX_KEYS] = []
    for i: uint256 in range(MAX_KEYS):
        word: uint256 = self._keys[run][platform][i]
        if word == 0:
            break
        found.append(
            IAttestationRegistry.PlatformKey(
                trainer=convert(word & constants.ADDRESS_MASK, address),
                expiry=(word >> EXPIRY) & EXPIRY_MASK,
                bond=((word >> BOND) & BOND_MASK) << (word >> UNIT),
            )
        )
    return found
