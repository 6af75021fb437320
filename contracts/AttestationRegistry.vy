# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Attestation Registry
@license MIT
@notice Registers an enclave's key for a trainer once its quote is verified up to a CA that the run's policy pins; the
        key then signs each round's manifest, and `TrainingRuns.reveal` checks the signature. Protocol section 11.
@dev Three P-256 signatures (CA over PCK certificate, PCK key over QE report, attestation key over quote) through the
     precompile at 0x100. TCB status, revocation lists and dates need DER and JSON: validators check those off chain.
@custom:security No owner, no money. Policies are content-addressed, so nobody can change one; a policy's guardian may
     deny entries and raise its floor, for runs that chose that policy, and nothing else. Calls views of the vault, and
     of `RUNS` also `set_enclave_key`, which calls nothing. The root id is only a claim of the policy: readers of the
     record must check that the pinned CAs belong to that root, and validators do.
"""

from interfaces import IAttestationRegistry
from interfaces import IStakeVault
from interfaces import ITrainingRuns
from modules import certificates
from modules import constants
from modules import p256
from modules import platforms
from modules import quotes

implements: IAttestationRegistry

initializes: platforms

TAG_KEY: constant(bytes32) = keccak256("earnest/enclave-key/v1")
TAG_CHALLENGE: constant(bytes32) = keccak256("earnest/challenge/v1")
CHALLENGE_BLOCKS: constant(uint256) = 256
NEWEST_ROUND: constant(uint256) = 2**24 - 1
EXPIRY: constant(uint256) = 160            # of an enclave key's word in `RUNS`
BLOCK_MASK: constant(uint256) = 2**48 - 1
FLOOR: constant(uint256) = 224
FILTER_MASK: constant(uint256) = 2**224 - 1

RUNS: public(immutable(address))
SETTLEMENT: public(immutable(address))
VAULT: public(immutable(address))
CREDULOUS: immutable(bool)                 # what answered at 0x100 when this was deployed took a bad signature

# run -> trainer -> hash of what its newest key depends on (26 bytes), block of the last challenge used (48 bits)
records: HashMap[uint256, HashMap[address, uint256]]
denied: public(HashMap[bytes32, HashMap[bytes32, bool]])         # policy -> entry
narrowed: HashMap[bytes32, uint256]        # policy -> filter of the denied (bit: entry modulo 224), raised floor (32 bits)


@deploy
def __init__(runs: address, settlement: address, vault: address):
    """
    @notice Can be deployed on a chain without the precompile; `register` then reverts.
    @param runs Keeps the keys and the round times; must be wired to this contract.
    @param settlement The vault's manager.
    """
    wired: bool = runs != empty(address) and settlement != empty(address) and vault != empty(address)
    assert wired, "attestation: bad wiring"
    RUNS = runs
    SETTLEMENT = settlement
    VAULT = vault
    CREDULOUS = p256._credulous()


# Trainers.


@external
def register(
    registration: IAttestationRegistry.Registration,
    policy: IAttestationRegistry.Policy,
    parts: IAttestationRegistry.QuoteParts,
):
    """
    @notice Makes an enclave's key the trainer's in a run, in place of any before, for the policy's `ttl_s` seconds. The
            quote's report data must begin with the binding of this key, trainer, run and challenge.
    @dev Caller: a seated trainer, or the newest operator of its seat. Without seat and bond anyone who shares a machine
         could fill its places. A challenge can be used once: the block of the next must be higher.
    """
    run: uint256 = registration.run
    trainer: address = registration.trainer
    hash: bytes32 = empty(bytes32)
    oldest: uint256 = 0
    hash, oldest = self._policy_of(run, policy)
    self._check_sender(run, trainer)
    assert registration.key != empty(address), "attestation: no key"
    claims: IAttestationRegistry.Claims = self._check(hash, policy, parts)
    assert claims.binding == self._binding(registration), "attestation: not bound to this key"
    assert not self._is_denied(hash, self._key_entry(registration.key), self.narrowed[hash]), "attestation: key denied"

    record: uint256 = self.records[run][trainer]
    assert registration.challenge_block > record & BLOCK_MASK, "attestation: challenge used"
    basis: uint256 = self._basis(hash, claims.workload, claims.platform, claims.pck)
    self.records[run][trainer] = basis | registration.challenge_block

    expiry: uint256 = block.timestamp + convert(policy.ttl_s, uint256)
    live_bond: uint256 = self._live_bond(run, trainer)
    assert live_bond != 0, "attestation: no live bond"
    platforms._take(
        run,
        claims.platform,
        trainer,
        expiry,
        oldest,
        convert(policy.platform_keys, uint256),
        live_bond if policy.platform_bond != 0 else 0,
        convert(policy.platform_bond, uint256),
    )
    log IAttestationRegistry.KeyRegistered(
        run=run,
        trainer=trainer,
        key=registration.key,
        policy=hash,
        workload=claims.workload,
        root_id=policy.root_id,
        platform=claims.platform,
        pck=claims.pck,
        quote=claims.quote,
        expiry=expiry,
        challenge_block=registration.challenge_block,
        evidence_root=registration.evidence_root,
        collateral_digest=registration.collateral_digest,
    )
    extcall ITrainingRuns(RUNS).set_enclave_key(
        run, trainer, convert(registration.key, uint256) | (expiry << EXPIRY)
    )


# Narrowing.


@external
def revoke(
    run: uint256,
    trainer: address,
    policy: IAttestationRegistry.Policy,
    workload: bytes32,
    platform: bytes32,
    pck: bytes32,
):
    """
    @notice Ends a trainer's key from the second next round on, if something that it depends on was denied, or if the
            trainer's bond grew beyond what was counted for the platform (registering again counts it anew). Anyone may
            call.
    @param workload With `platform` and `pck`: as `KeyRegistered` logged them for the trainer's newest key.
    """
    hash: bytes32 = keccak256(abi_encode(policy))
    record: uint256 = self.records[run][trainer]
    assert record != 0, "attestation: nothing registered"
    assert record & ~BLOCK_MASK == self._basis(hash, workload, platform, pck), "attestation: not what was logged"
    word: uint256 = staticcall ITrainingRuns(RUNS).enclave_key(run, trainer)
    key: address = convert(word & constants.ADDRESS_MASK, address)
    cutoff: uint256 = (staticcall ITrainingRuns(RUNS).attestation(run))[1]
    assert word >> EXPIRY > cutoff, "attestation: key ends before"
    entry: bytes32 = empty(bytes32)
    for candidate: bytes32 in [workload, platform, pck, policy.root_id, self._key_entry(key)]:
        if self.denied[hash][candidate]:
            entry = candidate
            break
    if entry == empty(bytes32):
        limit: uint256 = convert(policy.platform_bond, uint256)
        live_bond: uint256 = self._live_bond(run, trainer) >> platforms._unit(limit)
        grew: bool = limit != 0 and live_bond > platforms._counted(run, platform, trainer)
        assert grew, "attestation: nothing against the key"
    log IAttestationRegistry.KeyRevoked(run=run, trainer=trainer, key=key, expiry=cutoff, entry=entry)
    extcall ITrainingRuns(RUNS).set_enclave_key(run, trainer, convert(key, uint256) | (cutoff << EXPIRY))


@external
def deny(policy: IAttestationRegistry.Policy, entry: bytes32):
    """
    @notice Refuses new keys that depend on `entry`: a workload, a platform, a PCK key's hash, a root id, or
            keccak256(abi.encode(key)) of an enclave's key. `revoke` ends live ones. Guardian only; cannot be undone.
    """
    hash: bytes32 = self._guarded(policy)
    assert entry != empty(bytes32), "attestation: nothing to deny"
    assert not self.denied[hash][entry], "attestation: already denied"
    self.denied[hash][entry] = True
    self.narrowed[hash] |= self._bit(entry)
    log IAttestationRegistry.Denied(policy=hash, entry=entry, time=block.timestamp)


@external
def raise_floor(policy: IAttestationRegistry.Policy, number: uint256):
    """
    @notice Raises the lowest TCB evaluation number that validators accept, from the second next round on. Guardian only.
    """
    hash: bytes32 = self._guarded(policy)
    word: uint256 = self.narrowed[hash]
    lowest: uint256 = max(word >> FLOOR, convert(policy.evaluation_floor, uint256))
    assert number > lowest and number < 2**32, "attestation: floor not higher"
    self.narrowed[hash] = (word & FILTER_MASK) | (number << FLOOR)
    log IAttestationRegistry.FloorRaised(policy=hash, floor=number, time=block.timestamp)


# Views.


@external
@view
def challenge(run: uint256, trainer: address) -> (uint256, bytes32):
    """
    @return The last block, and the challenge of that block for the trainer's enclave. Valid for 256 blocks.
    """
    return block.number - 1, self._challenge(run, trainer, block.number - 1)


@external
@view
def check_quote(
    policy: IAttestationRegistry.Policy, parts: IAttestationRegistry.QuoteParts
) -> IAttestationRegistry.Claims:
    """
    @notice All that `register` checks of a quote under a policy, whichever key and run it was made for.
    """
    return self._check(keccak256(abi_encode(policy)), policy, parts)


@external
@view
def policy_hash(policy: IAttestationRegistry.Policy) -> bytes32:
    """
    @return Hash that a run with this policy has as its `attestation_policy`.
    """
    return keccak256(abi_encode(policy))


@external
@view
def raised_floor(policy: bytes32) -> uint256:
    """
    @return The floor that the guardian raised; 0 if it is still the policy's own.
    """
    return self.narrowed[policy] >> FLOOR


@external
@view
def record_of(run: uint256, trainer: address) -> (bytes32, uint256):
    """
    @return First 26 bytes of keccak256(abi.encode(policy, workload, platform, pck)) of the newest key, the rest zero;
            and the block of its challenge. Zeros if none was registered.
    """
    record: uint256 = self.records[run][trainer]
    return convert(record & ~BLOCK_MASK, bytes32), record & BLOCK_MASK


@external
@view
def platform_keys(run: uint256, platform: bytes32) -> DynArray[IAttestationRegistry.PlatformKey, 16]:
    """
    @return Keys that hold the platform's places in a run, expired ones included.
    """
    return platforms._list(run, platform)


# Checks.


@internal
@view
def _check(
    hash: bytes32, policy: IAttestationRegistry.Policy, parts: IAttestationRegistry.QuoteParts
) -> IAttestationRegistry.Claims:
    """
    @dev Cheap checks come first. Every used part of the evidence is covered by one of the three signatures or, like the
         attestation key and the auth data, by the hash in the QE report.
    """
    claims: IAttestationRegistry.Claims = quotes._read(parts.quote)
    assert claims.workload in policy.workloads, "attestation: workload not allowed"
    quotes._check_qe(parts.qe_report, policy.qe_signer, policy.qe_product, policy.qe_min_svn)
    quotes._check_key(parts.qe_report, parts.attestation_key, parts.qe_auth)
    pck: bytes32[2] = certificates._key(parts.pck, parts.key_at)
    claims.platform = certificates._platform(parts.pck, parts.ppid_at)
    claims.pck = keccak256(abi_encode(pck))
    self._check_denied(hash, policy.root_id, claims)

    assert parts.ca < len(policy.pck_cas), "attestation: no such CA"
    ca: IAttestationRegistry.P256Key = policy.pck_cas[parts.ca]
    if not p256._valid(sha256(parts.pck), parts.pck_signature, [ca.x, ca.y]):
        self._refuse("attestation: wrong PCK signature")
    if not p256._valid(sha256(abi_encode(parts.qe_report)), parts.qe_signature, pck):
        self._refuse("attestation: wrong QE signature")
    if not p256._valid(claims.quote, parts.quote_signature, parts.attestation_key):
        self._refuse("attestation: wrong quote signature")
    return claims


@internal
@view
def _refuse(reason: String[40]):
    assert p256._available(), "attestation: no P-256 precompile"
    raise reason


@internal
@view
def _check_denied(hash: bytes32, root_id: bytes32, claims: IAttestationRegistry.Claims):
    assert not CREDULOUS, "attestation: P-256 takes anything"
    filter: uint256 = self.narrowed[hash]
    assert not self._is_denied(hash, claims.workload, filter), "attestation: workload denied"
    assert not self._is_denied(hash, claims.platform, filter), "attestation: platform denied"
    assert not self._is_denied(hash, claims.pck, filter), "attestation: PCK key denied"
    assert not self._is_denied(hash, root_id, filter), "attestation: root denied"


@internal
@view
def _is_denied(hash: bytes32, entry: bytes32, filter: uint256) -> bool:
    """
    @dev Few entries pass the filter by chance, so a deny-list seldom makes a registration read more slots.
    """
    return filter & self._bit(entry) != 0 and self.denied[hash][entry]


@internal
@pure
def _bit(entry: bytes32) -> uint256:
    return 1 << (convert(entry, uint256) % FLOOR)


@internal
@view
def _policy_of(run: uint256, policy: IAttestationRegistry.Policy) -> (bytes32, uint256):
    """
    @return The policy's hash, and t0 of the run's oldest round still open to reveals.
    """
    wanted: bytes32 = empty(bytes32)
    cutoff: uint256 = 0
    oldest: uint256 = 0
    wanted, cutoff, oldest = staticcall ITrainingRuns(RUNS).attestation(run)
    assert wanted != empty(bytes32), "attestation: run takes none"
    hash: bytes32 = keccak256(abi_encode(policy))
    assert hash == wanted, "attestation: not the run's policy"
    return hash, oldest


@internal
@view
def _check_sender(run: uint256, trainer: address):
    role: uint256 = 0
    seat: uint256 = 0
    role, seat = staticcall ITrainingRuns(RUNS).seat_of(run, trainer)
    assert role == constants.TRAINER, "attestation: no trainer seat"
    if msg.sender != trainer:
        held: ITrainingRuns.Seat = staticcall ITrainingRuns(RUNS).seat_at(run, constants.TRAINER, seat, NEWEST_ROUND)
        assert held.operator == msg.sender, "attestation: not the trainer"


@internal
@view
def _guarded(policy: IAttestationRegistry.Policy) -> bytes32:
    assert msg.sender == policy.guardian, "attestation: not the guardian"
    return keccak256(abi_encode(policy))


@internal
@view
def _challenge(run: uint256, trainer: address, number: uint256) -> bytes32:
    recent: bool = number < block.number and block.number - number <= CHALLENGE_BLOCKS
    assert recent, "attestation: challenge expired"
    hash: bytes32 = blockhash(number)
    assert hash != empty(bytes32), "attestation: no block hash"  # some chains answer zero, which anyone can foresee
    return keccak256(abi_encode(TAG_CHALLENGE, chain.id, self, run, trainer, number, hash))


@internal
@view
def _binding(r: IAttestationRegistry.Registration) -> bytes32:
    challenge: bytes32 = self._challenge(r.run, r.trainer, r.challenge_block)
    return keccak256(abi_encode(TAG_KEY, chain.id, self, r.trainer, r.key, r.run, challenge))


@internal
@pure
def _basis(policy: bytes32, workload: bytes32, platform: bytes32, pck: bytes32) -> uint256:
    return convert(keccak256(abi_encode(policy, workload, platform, pck)), uint256) & ~BLOCK_MASK


@internal
@pure
def _key_entry(key: address) -> bytes32:
    return keccak256(abi_encode(key))


@internal
@view
def _live_bond(run: uint256, trainer: address) -> uint256:
    return staticcall IStakeVault(VAULT).live_bond(SETTLEMENT, run, trainer)
