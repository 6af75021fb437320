# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Seats
@license MIT
@notice Owner, operator and stake of each seat by round. Protocol section 3.
@dev Changes count from the next round, while the last two rounds may still be settled: tenures, keys and stakes are
     exact for rounds q-1, q and q+1; validators' stakes change at q+2. A tenure is one word: owner (160 bits), from round, barred until, asked back from
     (24 each), delegated (1). Where the owner is its own operator, that word is all that a commit reads of the seat.
"""

from modules import constants

struct Seat:
    tenure: uint256
    commitments: uint256[2]        # by round parity: first 28 bytes of the commitment, round as uint32
    stakes: uint256                # newest (96 bits), the one before (96), from which round each (24, 24)
    reports: bytes32[2]            # validators: hash of the revealed report, by round parity
    stakes_before: uint256         # what counted before these two (96), and before that (96); from which round the first (24)
    previous: uint256              # the previous tenure
    operator: uint256              # newest operator named (160 bits), from round (24): also by the previous tenure
    operator_before: uint256       # the one before
    operator_first: address        # the one before both

SILENT_ROUNDS: constant(uint256) = 8
FRESH_ROUNDS: constant(uint256) = 2

SINCE: constant(uint256) = 160
BARRED: constant(uint256) = 184
ASKED: constant(uint256) = 208
DELEGATED: constant(uint256) = 1 << 232
STAMP_MASK: constant(uint256) = 2**32 - 1
MEMBER_MASK: constant(uint256) = 2**16 - 1

seats: HashMap[uint256, Seat]                              # by `_key`
members: HashMap[uint256, HashMap[address, uint256]]       # run -> account -> seat (8 bits), role (8), barred until << 16


@internal
@pure
def _key(run: uint256, role: uint256, seat: uint256) -> uint256:
    assert seat < constants.MAX_TRAINERS, "runs: no such seat"
    return (run << 32) | (role << 16) | seat


@internal
@pure
def _check_role(role: uint256):
    assert role == constants.TRAINER or role == constants.VALIDATOR, "runs: unknown role"


@internal
@pure
def _owner(tenure: uint256) -> address:
    return convert(tenure & constants.ADDRESS_MASK, address)


@internal
@pure
def _round(tenure: uint256, field: uint256) -> uint256:
    return (tenure >> field) & constants.ROUND_MASK


@internal
@view
def _current(key: uint256) -> uint256:
    """
    @return The seat's newest tenure, which may begin with the next round.
    """
    tenure: uint256 = self.seats[key].tenure
    assert tenure != 0, "runs: empty seat"
    return tenure


@internal
@view
def _tenure_at(key: uint256, round: uint256) -> uint256:
    """
    @return The tenure that `round` belongs to; zero for a free seat.
    """
    tenure: uint256 = self.seats[key].tenure
    if (tenure >> SINCE) & constants.ROUND_MASK <= round:
        return tenure
    tenure = self.seats[key].previous
    return tenure if (tenure >> SINCE) & constants.ROUND_MASK <= round else 0


@internal
@view
def _holder(key: uint256, round: uint256) -> (uint256, address):
    """
    @dev On the hot path: fields are unpacked in place, and an owner that is its own operator needs no further word.
    @return Tenure (zero for a free seat) and operator in `round`.
    """
    tenure: uint256 = self.seats[key].tenure
    if (tenure >> SINCE) & constants.ROUND_MASK > round:
        tenure = self._tenure_at(key, round)
    if tenure & DELEGATED == 0:
        return tenure, convert(tenure & constants.ADDRESS_MASK, address)
    named: uint256 = self.seats[key].operator
    if named >> SINCE > round:
        named = self.seats[key].operator_before
        if named >> SINCE > round:
            return tenure, self.seats[key].operator_first
    return tenure, convert(named & constants.ADDRESS_MASK, address)


@internal
@view
def _stake_at(key: uint256, round: uint256) -> uint256:
    """
    @return Stake that counts in `round`, wei.
    """
    word: uint256 = self.seats[key].stakes
    if round >= (word >> 192) & constants.ROUND_MASK:
        return word & constants.AMOUNT_MASK
    if round >= word >> 216:
        return (word >> 96) & constants.AMOUNT_MASK
    word = self.seats[key].stakes_before
    return (word if round >= word >> 192 else word >> 96) & constants.AMOUNT_MASK


@internal
def _set_stake(key: uint256, stake: uint256, round: uint256):
    """
    @dev Replaces a change that was to count from `round` or later.
    """
    word: uint256 = self.seats[key].stakes
    since: uint256 = (word >> 192) & constants.ROUND_MASK
    if since >= round:
        word &= ~(constants.AMOUNT_MASK | (constants.ROUND_MASK << 192))
        self.seats[key].stakes = word | stake | (round << 192)
        return
    self.seats[key].stakes = stake | ((word & constants.AMOUNT_MASK) << 96) | (round << 192) | (since << 216)
    if word >> 216 != since:
        before: uint256 = (self.seats[key].stakes_before & constants.AMOUNT_MASK) << 96
        self.seats[key].stakes_before = before | ((word >> 96) & constants.AMOUNT_MASK) | ((word >> 216) << 192)


@internal
@pure
def _counts_from(role: uint256, round: uint256) -> uint256:
    """
    @dev A validator's stake gets a full round's notice, unless the run has not started: whoever bonds in a round's last
         second must not decide the next.
    @return The first round in which a stake counts that changed before `round`.
    """
    return round + 1 if role == constants.VALIDATOR and round != 0 else round


@internal
def _set_operator(key: uint256, operator: address, round: uint256):
    """
    @dev `round` never falls from call to call: it is the next round.
    """
    tenure: uint256 = self.seats[key].tenure
    if tenure & DELEGATED == 0:
        self._name(key, self._owner(tenure), self._round(tenure, SINCE))
        self.seats[key].tenure = tenure | DELEGATED
    self._name(key, operator, round)


@internal
def _name(key: uint256, operator: address, round: uint256):
    assert operator != empty(address), "runs: no operator"
    named: uint256 = self.seats[key].operator
    if named >> SINCE != round:
        self.seats[key].operator_first = self._owner(self.seats[key].operator_before)
        self.seats[key].operator_before = named
    self.seats[key].operator = convert(operator, uint256) | (round << SINCE)


@internal
def _seat(run: uint256, role: uint256, seat: uint256, owner: address, operator: address, stake: uint256, round: uint256):
    """
    @dev Starts a tenure. The tenure before it stays readable, unless it was to begin with the same round and so
         never did; an account that was barred elsewhere stays barred.
    """
    key: uint256 = self._key(run, role, seat)
    old: uint256 = self.seats[key].tenure
    if old != 0:
        if self._round(old, SINCE) != round:
            self.seats[key].previous = old
        self.members[run][self._owner(old)] &= ~MEMBER_MASK
    barred: uint256 = self.members[run][owner] >> 16
    self.members[run][owner] = seat | (role << 8) | (barred << 16)
    tenure: uint256 = convert(owner, uint256) | (round << SINCE) | (barred << BARRED)
    if operator != owner:
        tenure |= DELEGATED
        self._name(key, operator, round)
    self.seats[key].tenure = tenure
    counts: uint256 = self._counts_from(role, round)
    if counts != round:
        self._set_stake(key, 0, round)
    self._set_stake(key, stake, counts)


@internal
def _set_bar(run: uint256, seat: uint256, account: address, until: uint256, at_most: uint256) -> bool:
    """
    @dev Sets the account's bar in the tenure of `seat` before the newest, in its present seat and in any it takes later.
    @return False if the account is barred beyond `at_most`, which stays.
    """
    member: uint256 = self.members[run][account]
    if member >> 16 > at_most:
        return False
    self.members[run][account] = (member & MEMBER_MASK) | (until << 16)
    key: uint256 = self._key(run, constants.TRAINER, seat)
    if self._owner(self.seats[key].previous) == account:
        self.seats[key].previous = self._barred(self.seats[key].previous, until)
    if member & MEMBER_MASK != 0:
        home: uint256 = self._key(run, (member >> 8) & 255, member & 255)
        self.seats[home].tenure = self._barred(self.seats[home].tenure, until)
    return True


@internal
@pure
def _barred(tenure: uint256, until: uint256) -> uint256:
    return (tenure & ~(constants.ROUND_MASK << BARRED)) | (until << BARRED)


@internal
def _ask_back(key: uint256, current: uint256, next: uint256):
    """
    @dev Only a seat whose last joining or asking has run out, or it would lose the rounds still open.
    """
    tenure: uint256 = self.seats[key].tenure
    newest: uint256 = max(self._round(tenure, SINCE), self._round(tenure, ASKED))
    assert newest + FRESH_ROUNDS + 1 < current, "runs: seat is still active"
    self.seats[key].tenure = (tenure & ~(constants.ROUND_MASK << ASKED)) | (next << ASKED)


@internal
@view
def _fresh(key: uint256, round: uint256) -> bool:
    """
    @return True if the validator joined or asked back at most two rounds before `round`.
    """
    tenure: uint256 = self.seats[key].tenure
    joined: uint256 = self._round(tenure, SINCE)
    asked: uint256 = self._round(tenure, ASKED)
    return (joined <= round and joined + FRESH_ROUNDS >= round) or (
        asked != 0 and asked <= round and asked + FRESH_ROUNDS >= round
    )


@internal
@view
def _silent(key: uint256, round: uint256) -> bool:
    """
    @dev Only work counts: asking back does not end a silence.
    @return True if the seat's tenure is older than eight rounds and committed nothing in the last eight before `round`.
    """
    if self._round(self.seats[key].tenure, SINCE) + SILENT_ROUNDS > round:
        return False
    for slot: uint256 in self.seats[key].commitments:
        if slot != 0 and (slot & STAMP_MASK) + SILENT_ROUNDS >= round:
            return False
    return True


@internal
@view
def _commitment(key: uint256, round: uint256) -> uint256:
    """
    @return The stored slot of `round`; zero when nothing was committed for it.
    """
    slot: uint256 = self.seats[key].commitments[round & 1]
    return slot if slot & STAMP_MASK == round else 0


@internal
def _commit(key: uint256, round: uint256, commitment: bytes32):
    assert self._commitment(key, round) == 0, "runs: already committed"
    slot: uint256 = self._slot(commitment, round)
    assert slot != 0, "runs: empty commitment"  # in round 0 it would read as none
    self.seats[key].commitments[round & 1] = slot


@internal
@pure
def _slot(commitment: bytes32, round: uint256) -> uint256:
    return (convert(commitment, uint256) & ~STAMP_MASK) | round


@internal
@view
def _check_smallest(run: uint256, seat: uint256, seats: uint256, round: uint256):
    """
    @dev Of the trainer seats whose tenure began before `round`, none may have a smaller bond.
    """
    stake: uint256 = self.seats[self._key(run, constants.TRAINER, seat)].stakes & constants.AMOUNT_MASK
    for i: uint256 in range(seats, bound=constants.MAX_TRAINERS):
        key: uint256 = self._key(run, constants.TRAINER, i)
        if self.seats[key].stakes & constants.AMOUNT_MASK < stake:
            assert self._round(self.seats[key].tenure, SINCE) >= round, "runs: not the smallest bond"
