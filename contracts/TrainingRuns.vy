# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Training Runs
@license MIT
@notice Runs, seats, schedule, commitments, seeds and reports. Protocol sections 3 to 7.
@dev Holds no money. A phase is a function of block time; nothing has to be advanced and nobody can stall it.
@custom:security No owner. `SETTLEMENT` may only bar a trainer, `REGISTRY` may only set a trainer's enclave key, the sponsor
     may only end its run with one full round's notice. Stakes are read from the vault only for rounds that have not begun.
"""

from interfaces import IRunTerms
from interfaces import ISettlement
from interfaces import IStakeVault
from interfaces import ITrainingRuns
from modules import admission
from modules import blocks
from modules import constants
from modules import schedule
from modules import seats
from modules import terms
from modules import votes

implements: ITrainingRuns

initializes: seats

exports: constants.PROTOCOL_VERSION

struct Round:
    revealed: uint256              # bit i: trainer seat i revealed
    tally: uint256                 # T (128 bits) and the fields below
    seed: bytes32

FREE_SEAT: constant(uint256) = max_value(uint256)
MANIFEST_TYPE: constant(bytes32) = keccak256(
    "Manifest(uint256 run,uint32 round,address trainer,bytes32 base_state,bytes32 update,bytes32 samples,bytes32 trace,uint64 steps,uint64 tokens,uint64 size)"
)
STATEMENT: constant(bytes32) = keccak256("earnest/round-statement/v1")
HALF_ORDER: constant(uint256) = 57896044618658097711785492504343953926418782139537452191302581570759080747168
SEED_BLOCK: constant(uint256) = 1           # the seed mixes in the hash of this block after the request
SEED_DELAY: constant(uint256) = 3           # and is drawn after this many: its builder cannot know the randomness of then

STAKES_ROUND: constant(uint256) = 32        # fields of `counts`
OUTBIDS: constant(uint256) = 216

SETTLEMENT: public(immutable(address))
VAULT: public(immutable(address))
TERMS: public(immutable(address))
REGISTRY: public(immutable(address))

run_count: public(uint256)
run_sponsor: public(HashMap[uint256, address])
runs: HashMap[uint256, ITrainingRuns.Terms]
policies: HashMap[uint256, bytes32]        # only of runs that take attestations
# trainer seats taken (16 bits), validator seats (16), round of the last stakes (24); from bit 216 on: seats outbid (16) from
# a round on (24)
counts: HashMap[uint256, uint256]
rounds: HashMap[uint256, Round]            # by `_at`
stakes: HashMap[uint256, uint256[8]]       # by `_at`: validators' stakes, two a word
enclave_key: public(HashMap[uint256, HashMap[address, uint256]])   # run -> trainer -> address (160 bits), expiry


@deploy
def __init__(settlement: address, vault: address, terms_: address, registry: address):
    """
    @param settlement The vault's manager, which must be wired to this contract.
    @param vault Holds the bonds of the seats.
    @param terms_ Creates runs, checks and packs their parameters.
    @param registry Sets enclave keys; must be wired to this contract.
    """
    named: bool = settlement != empty(address) and registry != empty(address)
    assert named and vault.is_contract and terms_.is_contract, "runs: bad wiring"
    SETTLEMENT = settlement
    VAULT = vault
    TERMS = terms_
    REGISTRY = registry


# Sponsors.


@external
def open_run(
    sponsor: address, words: ITrainingRuns.Terms, attestation_policy: bytes32, budget: uint256, exit_delay: uint256
) -> uint256:
    """
    @notice Takes a new run from `RunTerms`, which has checked and packed its parameters. RunTerms only.
    @param sponsor Account that called RunTerms. Its idle balance pays.
    @param budget rounds * (P + Q), wei.
    @param exit_delay Seconds.
    @return The run's id, counting from 1.
    """
    assert msg.sender == TERMS, "runs: not the terms"
    run: uint256 = self.run_count + 1
    self.run_count = run
    self.run_sponsor[run] = sponsor
    self.runs[run] = words
    if attestation_policy != empty(bytes32):
        self.policies[run] = attestation_policy
    extcall ISettlement(SETTLEMENT).open(run, sponsor, budget, exit_delay)
    return run


@external
def end(run: uint256):
    """
    @notice Ends a run with one full round's notice: the current round and the next are still played. Sponsor only.
    """
    word: uint256 = self._schedule(run)
    assert msg.sender == self.run_sponsor[run], "runs: not the sponsor"
    rounds: uint256 = schedule._clock(word)[1] + 1
    assert rounds < schedule._rounds(word), "runs: no round left to end"
    self.runs[run].schedule = schedule._with_rounds(word, rounds)
    log ITrainingRuns.RunEnded(run=run, rounds=rounds)


# Seats.


@external
def join(
    run: uint256, role: uint256, operator: address, uri: String[256], proof: DynArray[bytes32, 32], take: uint256
) -> uint256:
    """
    @notice Gives the caller a seat from the next round on. Its bond must already be in the vault.
    @param role 1 trainer, 2 validator.
    @param operator Key that commits, reveals and reports; may be the caller.
    @param uri Location of the caller's payloads.
    @param proof Admission proof; empty for a trainer of an open run.
    @param take `max_value(uint256)` for a free seat; when there is none, the seat to take over: one whose bond is leaving,
           a silent one, or the trainer seat with the smallest bond for 1.25 times that bond. A quarter of the trainer
           seats, at least one, can be outbid in a round.
    @return The seat's index.
    """
    word: uint256 = self._schedule(run)
    current: uint256 = 0
    next: uint256 = 0
    current, next = schedule._clock(word)
    assert next < schedule._rounds(word), "runs: too late to join"
    seats._check_role(role)
    assert seats.members[run][msg.sender] & seats.MEMBER_MASK == 0, "runs: already seated"
    if role == constants.VALIDATOR or (word >> schedule.OPEN) & 1 == 0:
        root: bytes32 = self.runs[run].admission_root
        assert admission._admitted(root, msg.sender, role, proof), "runs: not admitted"
    stake: uint256 = self._live_bond(run, msg.sender)
    assert stake >= self._min_bond(run, role), "runs: bond too small"

    seat: uint256 = take
    replaced: address = empty(address)
    taken: uint256 = self._taken(run, role)
    if taken < self._limit(word, role):
        assert take == FREE_SEAT, "runs: a seat is free"
        seat = taken
        self.counts[run] += 1 << (16 * (role - 1))
    else:
        assert take != FREE_SEAT, "runs: no free seat"
        replaced = self._take_over(word, run, role, seat, stake, current, next)
    seats._seat(run, role, seat, msg.sender, operator, stake, next)
    log ITrainingRuns.SeatTaken(
        run=run,
        role=role,
        account=msg.sender,
        seat=seat,
        operator=operator,
        from_round=next,
        stake=stake,
        uri=uri,
        replaced=replaced,
    )
    return seat


@external
def set_operator(run: uint256, role: uint256, seat: uint256, operator: address):
    """
    @notice Changes a seat's operator key from the next round on. Owner only.
    """
    next: uint256 = schedule._clock(self._schedule(run))[1]
    key: uint256 = self._seat_key(run, role, seat)
    assert msg.sender == seats._owner(seats.seats[key].tenure), "runs: not the owner"
    old: address = seats._holder(key, next)[1]
    seats._set_operator(key, operator, next)
    log ITrainingRuns.OperatorChanged(run=run, role=role, seat=seat, old=old, new=operator, from_round=next)


@external
def set_uri(run: uint256, role: uint256, seat: uint256, uri: String[256]):
    """
    @notice Changes the location of the seat's payloads. Owner or operator.
    """
    self._check_owner_or_operator(self._seat_key(run, role, seat), schedule._clock(self._schedule(run))[1])
    log ITrainingRuns.UriChanged(run=run, role=role, seat=seat, uri=uri)


@external
def sync(run: uint256, role: uint256, seat: uint256):
    """
    @notice Reads the seat owner's live bond in the vault; it counts from the next round on, a validator's from the one
            after that. Anyone may call. The first report commit of a round does it for all validators.
    """
    seats._check_role(role)
    self._sync(run, role, seat, schedule._clock(self._schedule(run))[1])


@external
def ask_back(run: uint256, seat: uint256):
    """
    @notice Makes an inactive validator seat active again from the next round on. Owner or operator.
    """
    current: uint256 = 0
    next: uint256 = 0
    current, next = schedule._clock(self._schedule(run))
    key: uint256 = self._seat_key(run, constants.VALIDATOR, seat)
    self._check_owner_or_operator(key, next)
    seats._ask_back(key, current, next)
    log ITrainingRuns.AskedBack(run=run, seat=seat, from_round=next)


@external
def set_bar(run: uint256, seat: uint256, account: address, until_round: uint256, at_most: uint256):
    """
    @notice Bars a trainer from committing before `until_round`, in `seat`, which it has or had, and in any other. A bar
            that ends after `at_most` stays as it is. Settlement only.
    """
    assert msg.sender == SETTLEMENT, "runs: not the settlement"
    if seats._set_bar(run, seat, account, until_round, at_most):
        log ITrainingRuns.BarSet(run=run, account=account, until_round=until_round)


@external
def set_enclave_key(run: uint256, trainer: address, key: uint256):
    """
    @notice Sets the enclave key that signs the trainer's updates. Registry only.
    @param key The key's address and, above 160 bits, its expiry in unix seconds: it signs for rounds that open before.
    """
    assert msg.sender == REGISTRY, "runs: not the registry"
    self.enclave_key[run][trainer] = key


# Rounds.


@external
@reentrant
def commit(run: uint256, round: uint256, seat: uint256, commitment: bytes32):
    """
    @notice Commits to an update of the round inside its commit window, once. A late call reverts, and nothing is
            charged. Operator only; reverts while the seat is barred, and if the owner's live bond is below half of the
            minimum, rounded down to a power of two: after its exit has started, it is 0.
    @dev No lock: the only call out is a view of the vault, after which nothing is read again.
    """
    word: uint256 = self._schedule(run)
    assert schedule._in_commit(word, round), "runs: not in commit window"
    key: uint256 = seats._key(run, constants.TRAINER, seat)
    tenure: uint256 = self._acting(key, round)
    assert round >= seats._round(tenure, seats.BARRED), "runs: seat is barred"
    live_bond: uint256 = self._live_bond(run, seats._owner(tenure))
    assert live_bond >> ((word >> schedule.FLOOR) & schedule.FLOOR_MASK) != 0, "runs: no live bond"
    seats._commit(key, round, commitment)
    log ITrainingRuns.Committed(run=run, round=round, seat=seat, commitment=commitment)


@external
@reentrant
def reveal(seat: uint256, manifest: ITrainingRuns.Manifest, salt: bytes32, attestation: Bytes[65]):
    """
    @notice Opens the seat's commitment of the round. Operator only.
    @param attestation Empty, or the trainer's enclave key's signature over the manifest, 64 bytes: r and vs of EIP-2098.
           Refused in a run without an attestation policy.
    @dev No lock: nothing is called.
    """
    run: uint256 = manifest.run
    round: uint256 = convert(manifest.round, uint256)
    word: uint256 = self._schedule(run)
    assert schedule._in_reveal(word, round), "runs: not in reveal window"
    key: uint256 = seats._key(run, constants.TRAINER, seat)
    assert manifest.trainer == seats._owner(self._acting(key, round)), "runs: not the trainer"
    hash: bytes32 = keccak256(abi_encode(MANIFEST_TYPE, manifest))
    commitment: bytes32 = self._commitment(run, round, manifest.trainer, hash, salt)
    assert seats._commitment(key, round) == seats._slot(commitment, round), "runs: not what was committed"
    at: uint256 = self._at(run, round)
    revealed: uint256 = self.rounds[at].revealed
    assert (revealed >> seat) & 1 == 0, "runs: already revealed"
    self.rounds[at].revealed = revealed | (1 << seat)
    if len(attestation) == 0:
        log ITrainingRuns.Revealed(run=run, round=round, seat=seat, manifest=manifest, salt=salt)
    else:
        enclave: address = self._enclave(word, run, round, manifest.trainer, hash, attestation)
        log ITrainingRuns.AttestedReveal(
            run=run, round=round, seat=seat, manifest=manifest, salt=salt, key=enclave
        )


@external
def seed(run: uint256, round: uint256):
    """
    @notice Draws the round's seed once all updates are public. The first call stores its block b. A call from block b+4 on
            stores the seed, of the hash of block b+1 and its own block's randomness; where the chain no longer has that
            hash, it sets b anew. Anyone may call.
    """
    at: uint256 = self._at_report_commit(run, round)
    assert self.rounds[at].seed == empty(bytes32), "runs: seed already drawn"
    tally: uint256 = self.rounds[at].tally
    asked: uint256 = tally >> votes.ASKED
    hash: bytes32 = empty(bytes32)
    if asked != 0:
        assert block.number > asked + SEED_DELAY, "runs: too early to draw the seed"
        hash = blocks._hash(asked + SEED_BLOCK)
    if hash == empty(bytes32):
        self.rounds[at].tally = (tally & (2**votes.ASKED - 1)) | (block.number << votes.ASKED)
        log ITrainingRuns.SeedRequested(run=run, round=round, block_number=block.number)
    else:
        drawn: bytes32 = keccak256(abi_encode(hash, block.prevrandao, run, round))
        self.rounds[at].seed = drawn
        log ITrainingRuns.SeedStored(run=run, round=round, seed=drawn)


@external
def report_commit(run: uint256, round: uint256, seat: uint256, commitment: bytes32):
    """
    @notice Commits to the seat's report on a round, once. Operator only; needs the round's seed and an active seat. The
            round's first call fixes T and the stakes that vote.
    """
    at: uint256 = self._at_report_commit(run, round)
    assert self.rounds[at].seed != empty(bytes32), "runs: no seed yet"
    key: uint256 = seats._key(run, constants.VALIDATOR, seat)
    self._acting(key, round)
    tally: uint256 = self.rounds[at].tally
    if tally & votes.STAKE_MASK == 0:
        tally = self._fix_stakes(run, round, tally)
    assert (tally >> votes.ACTIVE) & (1 << seat) & constants.SEATS_MASK != 0, "runs: inactive seat"
    seats._commit(key, round, commitment)
    log ITrainingRuns.ReportCommitted(run=run, round=round, seat=seat, commitment=commitment)


@external
def report_reveal(run: uint256, round: uint256, seat: uint256, report: DynArray[bytes32, 29], salt: bytes32):
    """
    @notice Reveals the seat's report. Operator only. Its hash is stored and its words are logged. A report too short for
            the two roots and the hash of the measurements file is refused, and then charged as not revealed.
    """
    assert schedule._in_report_reveal(self._schedule(run), round), "runs: not in report-reveal window"
    key: uint256 = seats._key(run, constants.VALIDATOR, seat)
    owner: address = seats._owner(self._acting(key, round))
    assert len(report) >= 3, "runs: report too short"
    hash: bytes32 = keccak256(abi_encode(report))
    commitment: bytes32 = self._commitment(run, round, owner, hash, salt)
    assert seats._commitment(key, round) == seats._slot(commitment, round), "runs: not the committed report"
    at: uint256 = self._at(run, round)
    tally: uint256 = self.rounds[at].tally
    bit: uint256 = 1 << (votes.REPORTED + seat)
    assert tally & bit == 0, "runs: report already revealed"
    self.rounds[at].tally = tally | bit
    seats.seats[key].reports[round & 1] = hash
    log ITrainingRuns.ReportRevealed(run=run, round=round, seat=seat, report=report, salt=salt)


# Views.


@external
@view
def run_params(run: uint256) -> ITrainingRuns.RunParams:
    """
    @return The run's parameters as created.
    """
    self._schedule(run)
    return self._params(run, self.runs[run])


@external
@view
def run_rounds(run: uint256) -> uint256:
    """
    @return Rounds that will be played: `params.rounds`, or fewer after `end`.
    """
    return schedule._rounds(self._schedule(run))


@external
@view
def seat_counts(run: uint256) -> (uint256, uint256):
    """
    @return Trainer and validator seats ever taken.
    """
    return self._taken(run, constants.TRAINER), self._taken(run, constants.VALIDATOR)


@external
@view
def seat_at(run: uint256, role: uint256, seat: uint256, round: uint256) -> ITrainingRuns.Seat:
    """
    @notice A seat as it counts in `round`; exact from the last round on. `owner` is empty for a free seat.
    """
    return self._seat_view(self._seat_key(run, role, seat), round)


@external
@view
def owners_at(run: uint256, role: uint256, round: uint256, first: uint256, count: uint256) -> DynArray[address, 256]:
    """
    @notice Owners in `round` of up to `count` seats from `first` on; exact from the last round on.
    """
    found: DynArray[address, 256] = []
    key: uint256 = self._seat_key(run, role, 0)
    taken: uint256 = self._taken(run, role)
    start: uint256 = min(first, taken)
    for seat: uint256 in range(start, start + min(count, taken - start), bound=256):
        found.append(seats._owner(seats._tenure_at(key | seat, round)))
    return found


@external
@view
def seat_of(run: uint256, account: address) -> (uint256, uint256):
    """
    @return The account's role (0 = none) and seat.
    """
    member: uint256 = seats.members[run][account]
    return (member >> 8) & 255, member & 255


@external
@view
def commitment_of(run: uint256, role: uint256, seat: uint256, round: uint256) -> bytes32:
    """
    @return First 28 bytes of what the seat committed for `round`, the rest zero; kept until it commits for round + 2.
    """
    return convert(seats._commitment(self._seat_key(run, role, seat), round) & ~seats.STAMP_MASK, bytes32)


@external
@view
def revealed(run: uint256, round: uint256) -> uint256:
    """
    @return Bit i: trainer seat i revealed its update.
    """
    return self.rounds[self._at(run, round)].revealed


@external
@view
def seed_of(run: uint256, round: uint256) -> (uint256, bytes32):
    """
    @return Block in which the seed was requested (0 = not yet), and the seed (zero = not yet).
    """
    state: Round = self.rounds[self._at(run, round)]
    return state.tally >> votes.ASKED, state.seed


@external
@view
def round_facts(run: uint256, round: uint256) -> ITrainingRuns.RoundFacts:
    """
    @notice Everything that settlement needs of a round. Stakes never change; report hashes are kept as in `report_hash`.
    """
    self._schedule(run)
    own: ITrainingRuns.Terms = self.runs[run]
    at: uint256 = self._at(run, round)
    tally: uint256 = self.rounds[at].tally
    facts: ITrainingRuns.RoundFacts = ITrainingRuns.RoundFacts(
        params=self._params(run, own),
        rounds=schedule._rounds(own.schedule),
        trainer_count=self._taken(run, constants.TRAINER),
        revealed=self.rounds[at].revealed,
        active_stake=tally & votes.STAKE_MASK,
        stakes=empty(uint256[16]),
        report_hashes=empty(bytes32[16]),
    )
    if facts.active_stake != 0:
        words: uint256[8] = self.stakes[self._at(run, (tally >> votes.STAKES) & constants.ROUND_MASK)]
        for seat: uint256 in range(self._taken(run, constants.VALIDATOR), bound=16):
            facts.stakes[seat] = (words[seat // 2] >> (128 * (seat % 2))) & votes.STAKE_MASK
            facts.report_hashes[seat] = self._report_hash(own.schedule, run, round, tally, seat)
    return facts


@external
@view
def unrevealed(run: uint256, role: uint256, round: uint256) -> (uint256, uint256):
    """
    @return Bitmaps of the seats that committed for `round` (kept until they commit for round + 2) and of those that
            revealed.
    """
    committed: uint256 = 0
    for seat: uint256 in range(self._taken(run, role), bound=256):
        if seats._commitment(self._seat_key(run, role, seat), round) != 0:
            committed |= 1 << seat
    at: uint256 = self._at(run, round)
    if role == constants.TRAINER:
        return committed, self.rounds[at].revealed
    return committed, (self.rounds[at].tally >> votes.REPORTED) & constants.SEATS_MASK


@external
@view
def attestation(run: uint256) -> (bytes32, uint256, uint256):
    """
    @return Hash of the policy that enclave keys are registered under, zero for a run without attestation; t0 of the
            second next round, unix seconds, from which a narrowed policy counts; and t0 of the oldest round whose
            updates may still be revealed: a key that expired by then can sign no further update.
    """
    word: uint256 = self._schedule(run)
    current: uint256 = 0
    next: uint256 = 0
    current, next = schedule._clock(word)
    oldest: uint256 = current - min(current, (word >> schedule.OVERLAP) & 1)
    return self._policy(run, word), schedule._opens(word, next + 1), schedule._opens(word, oldest)


# Internals.


@internal
@view
def _schedule(run: uint256) -> uint256:
    word: uint256 = self.runs[run].schedule
    assert word != 0, "runs: no such run"
    return word


@internal
@view
def _policy(run: uint256, word: uint256) -> bytes32:
    return empty(bytes32) if schedule._level(word) == constants.INCENTIVE else self.policies[run]


@internal
@view
def _params(run: uint256, own: ITrainingRuns.Terms) -> ITrainingRuns.RunParams:
    return staticcall IRunTerms(TERMS).unpack(own, self._policy(run, own.schedule))


@internal
@pure
def _at(run: uint256, round: uint256) -> uint256:
    assert round <= constants.ROUND_MASK, "runs: no such round"
    return (run << 32) | round


@internal
@pure
def _seat_key(run: uint256, role: uint256, seat: uint256) -> uint256:
    seats._check_role(role)
    return seats._key(run, role, seat)


@internal
@view
def _at_report_commit(run: uint256, round: uint256) -> uint256:
    assert schedule._in_report_commit(self._schedule(run), round), "runs: not in report-commit window"
    return self._at(run, round)


@internal
@view
def _acting(key: uint256, round: uint256) -> uint256:
    """
    @return The seat's tenure in `round`, which the caller operates.
    """
    tenure: uint256 = 0
    operator: address = empty(address)
    tenure, operator = seats._holder(key, round)
    assert msg.sender == operator, "runs: not the operator"
    return tenure


@internal
@view
def _live_bond(run: uint256, account: address) -> uint256:
    return staticcall IStakeVault(VAULT).live_bond(SETTLEMENT, run, account)


@internal
@view
def _min_bond(run: uint256, role: uint256) -> uint256:
    return (self.runs[run].bonds >> (96 * (role - 1))) & constants.AMOUNT_MASK


@internal
@pure
def _limit(word: uint256, role: uint256) -> uint256:
    return (word >> schedule.TRAINERS) & 511 if role == constants.TRAINER else (word >> schedule.VALIDATORS) & 31


@internal
@view
def _taken(run: uint256, role: uint256) -> uint256:
    return (self.counts[run] >> (16 * (role - 1))) & constants.SEATS_MASK


@internal
@view
def _commitment(run: uint256, round: uint256, account: address, hash: bytes32, salt: bytes32) -> bytes32:
    """
    @dev Binds chain, contract, run, round and sender, so a copied commitment cannot be revealed.
    """
    return keccak256(abi_encode(chain.id, self, run, round, account, hash, salt))


@internal
@view
def _enclave(
    word: uint256, run: uint256, round: uint256, trainer: address, hash: bytes32, attestation: Bytes[65]
) -> address:
    """
    @return The trainer's enclave key. Reverts unless it signed this manifest and was unexpired when the round opened.
    """
    assert schedule._level(word) != constants.INCENTIVE, "runs: attestation not taken"
    enclave: uint256 = self.enclave_key[run][trainer]
    assert schedule._opens(word, round) < enclave >> 160, "runs: no live enclave key"
    assert len(attestation) == 64, "runs: attestation not 64 bytes"
    key: address = seats._owner(enclave)
    r: uint256 = convert(slice(attestation, 0, 32), uint256)
    vs: uint256 = convert(slice(attestation, 32, 32), uint256)
    s: uint256 = vs & (2**255 - 1)
    statement: bytes32 = keccak256(abi_encode(STATEMENT, chain.id, REGISTRY, run, round, hash))
    signed: bool = s <= HALF_ORDER and ecrecover(statement, 27 + (vs >> 255), r, s) == key
    assert signed, "runs: wrong enclave signature"
    return key


@internal
@view
def _check_owner_or_operator(key: uint256, round: uint256):
    tenure: uint256 = 0
    operator: address = empty(address)
    tenure, operator = seats._holder(key, round)
    assert msg.sender == operator or msg.sender == seats._owner(tenure), "runs: not owner or operator"


@internal
def _take_over(
    word: uint256, run: uint256, role: uint256, seat: uint256, stake: uint256, current: uint256, next: uint256
) -> address:
    """
    @dev One previous tenure must be enough to settle, so none that began with the current round can be taken, but in
         round 0, which no round precedes. Outbids need a tenure of a full round; before the start, any.
    @return Account that loses the seat.
    """
    key: uint256 = seats._key(run, role, seat)
    tenure: uint256 = seats._current(key)
    owner: address = seats._owner(tenure)
    since: uint256 = seats._round(tenure, seats.SINCE)
    before: uint256 = current if next != 0 else 1
    free: bool = self._live_bond(run, owner) == 0 or seats._silent(key, current)
    open: bool = free and (since != current or current == 0)
    assert open or since < before, "runs: seat taken too recently"
    if not free:
        assert role == constants.TRAINER, "runs: validator is not silent"
        bond: uint256 = seats.seats[key].stakes & constants.AMOUNT_MASK
        assert stake * 4 >= bond * 5, "runs: bond does not outbid"
        seats._check_smallest(run, seat, self._taken(run, role), before)
        if next != 0:
            self._count_outbid(word, run, next)
    return owner


@internal
def _count_outbid(word: uint256, run: uint256, next: uint256):
    """
    @dev Otherwise somebody with enough money for one round could empty a run of its trainers.
    """
    counts: uint256 = self.counts[run]
    outbids: uint256 = counts >> OUTBIDS
    if outbids >> 16 != next:
        outbids = next << 16
    assert outbids & constants.SEATS_MASK < max(self._limit(word, constants.TRAINER) // 4, 1), "runs: no outbid left"
    self.counts[run] = (counts & (2**OUTBIDS - 1)) | ((outbids + 1) << OUTBIDS)


@internal
def _sync(run: uint256, role: uint256, seat: uint256, next: uint256) -> uint256:
    """
    @return The owner's live bond, wei.
    """
    key: uint256 = seats._key(run, role, seat)
    counts: uint256 = seats._counts_from(role, next)
    old: uint256 = seats._stake_at(key, counts)
    new: uint256 = self._live_bond(run, seats._owner(seats._current(key)))
    if new != old:
        seats._set_stake(key, new, counts)
        log ITrainingRuns.StakeSynced(run=run, role=role, seat=seat, old=old, new=new, from_round=counts)
    return new


@internal
def _fix_stakes(run: uint256, round: uint256, tally: uint256) -> uint256:
    """
    @dev T and the stakes of the validators active in `round`: those that joined, asked back or revealed a report in
         round - 2 or later, and hold the seat still. The stakes are stored anew only where they differ from the last
         stored. Bonds are read for later rounds, and so that a stake that leaves is not counted again.
    @return The round's tally.
    """
    counts: uint256 = self.counts[run]
    recent: uint256 = 0
    for back: uint256 in range(1, 3):
        if round >= back:
            recent |= self.rounds[self._at(run, round - back)].tally >> votes.REPORTED
    active: uint256 = 0
    total: uint256 = 0
    words: uint256[8] = empty(uint256[8])
    next: uint256 = schedule._clock(self._schedule(run))[1]
    cap: uint256 = self.runs[run].ceiling >> terms.MAX_STAKE
    for seat: uint256 in range((counts >> 16) & constants.SEATS_MASK, bound=16):
        key: uint256 = seats._key(run, constants.VALIDATOR, seat)
        # No more than the live bond: one that has left, or is leaving, votes no more. No more than the run's cap.
        stake: uint256 = min(seats._stake_at(key, round), self._sync(run, constants.VALIDATOR, seat, next))
        stake = min(stake, cap)
        # Who lost the seat since was silent, or is leaving.
        held: bool = seats._round(seats._current(key), seats.SINCE) <= round
        if held and stake != 0 and ((recent >> seat) & 1 == 1 or seats._fresh(key, round)):
            active |= 1 << seat
            total += stake
            words[seat // 2] |= stake << (128 * (seat % 2))
    stored: uint256 = (counts >> STAKES_ROUND) & constants.ROUND_MASK
    last: uint256[8] = self.stakes[self._at(run, stored)]
    if keccak256(abi_encode(words)) != keccak256(abi_encode(last)):
        stored = round
        self.stakes[self._at(run, round)] = words
        self.counts[run] = (counts & ~(constants.ROUND_MASK << STAKES_ROUND)) | (round << STAKES_ROUND)
    fixed: uint256 = tally | total | (active << votes.ACTIVE) | (stored << votes.STAKES)
    self.rounds[self._at(run, round)].tally = fixed
    return fixed


@internal
@view
def _report_hash(word: uint256, run: uint256, round: uint256, tally: uint256, seat: uint256) -> bytes32:
    """
    @dev The slot is chosen by round parity, so it holds this round's hash until round + 2 is scored.
    """
    if seat >= 16 or (tally >> (votes.REPORTED + seat)) & 1 == 0:
        return empty(bytes32)
    if block.timestamp >= schedule._scoring(word, round + 2):
        return empty(bytes32)
    return seats.seats[seats._key(run, constants.VALIDATOR, seat)].reports[round & 1]


@internal
@view
def _seat_view(key: uint256, round: uint256) -> ITrainingRuns.Seat:
    tenure: uint256 = 0
    operator: address = empty(address)
    tenure, operator = seats._holder(key, round)
    return ITrainingRuns.Seat(
        owner=seats._owner(tenure),
        operator=operator,
        from_round=seats._round(tenure, seats.SINCE),
        stake=seats._stake_at(key, round),
        barred_until=seats._round(tenure, seats.BARRED),
        active_from=max(seats._round(tenure, seats.SINCE), seats._round(tenure, seats.ASKED)),
    )
