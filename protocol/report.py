"""The report of a validator on one round, and the commitment to it. Protocol sections 7 and 13.

```
words = [base root, newest root, measurements root, w0, w1, ...]
w_j   = ten seats, 10j first: seat 10j + i in bits [24 * (9 - i), 24 * (10 - i)), the top 16 bits zero
seat  = weight << 8 | verdict
```

Trailing words are omitted if all their seats are absent; seats beyond those judged are absent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from earnest.protocol.constants import MAX_TRAINERS, WEIGHT_ONE
from earnest.protocol.hashing import keccak_abi
from earnest.protocol.verdicts import Verdict

SEATS_PER_WORD = 10
HEAD_WORDS = 3
MAX_WORDS = HEAD_WORDS + -(-MAX_TRAINERS // SEATS_PER_WORD)


class ReportError(ValueError):
    """Words that are not the canonical encoding of any report."""


@dataclass(frozen=True)
class SeatVote:
    """A validator's weight and verdict for one trainer seat."""

    weight: int
    verdict: int

    @property
    def counted_weight(self) -> int:
        """The weight in the consensus: 0 unless the verdict is `ACCEPTED` (section 8)."""
        return self.weight if self.verdict == Verdict.ACCEPTED else 0


ABSENT = SeatVote(0, Verdict.ABSENT)


@dataclass(frozen=True)
class Report:
    """A validator's report on one round; `votes[i]` is the vote on trainer seat i."""

    base_root: bytes
    """Root of the state that the round trained from."""

    newest_root: bytes
    """Root of the state that the round's aggregate is added to."""

    measurements: bytes
    """Content root of the measurements file, under which it can be fetched."""

    votes: tuple[SeatVote, ...]

    def vote(self, seat: int) -> SeatVote:
        """Returns the vote on a seat: absent beyond the seats judged."""
        return self.votes[seat] if seat < len(self.votes) else ABSENT

    def words(self) -> list[bytes]:
        """Returns the canonical words, which are revealed as calldata and passed to settlement."""
        last = max((i for i, vote in enumerate(self.votes) if vote != ABSENT), default=-1)
        seats = [self.vote(i) for i in range(-(-(last + 1) // SEATS_PER_WORD) * SEATS_PER_WORD)]
        pages = [seats[i : i + SEATS_PER_WORD] for i in range(0, len(seats), SEATS_PER_WORD)]
        return [self.base_root, self.newest_root, self.measurements, *map(_pack, pages)]

    def hash(self) -> bytes:
        return words_hash(self.words())


def _pack(page: Sequence[SeatVote]) -> bytes:
    word = 0
    for vote in page:
        if not (0 <= vote.weight <= WEIGHT_ONE and 0 <= vote.verdict <= 255):
            raise ReportError(f"{vote} does not fit 24 bits")
        word = word << 24 | vote.weight << 8 | vote.verdict
    return word.to_bytes(32, "big")


def words_hash(words: Sequence[bytes]) -> bytes:
    """Returns keccak256(abi.encode(bytes32[] words)), the report hash, of any revealed words."""
    return keccak_abi(["bytes32[]"], [list(words)])


def read_report(words: Sequence[bytes], seats: int) -> Report | None:
    """Returns the report as the contract reads any words; None for fewer than three, which the contract refuses.

    Settlement uses this, so that node and contract agree on every encoding. Pass the revealed words, not those of the
    result, to the contract: the hash is over the revealed words.
    """
    if len(words) < HEAD_WORDS:
        return None
    return Report(words[0], words[1], words[2], tuple(_read_vote(words, i) for i in range(seats)))


def _read_vote(words: Sequence[bytes], seat: int) -> SeatVote:
    word = HEAD_WORDS + seat // SEATS_PER_WORD
    place = SEATS_PER_WORD - 1 - seat % SEATS_PER_WORD
    if word >= len(words):
        return ABSENT
    entry = int.from_bytes(words[word], "big") >> 24 * place & 0xFFFFFF
    return SeatVote(entry >> 8, entry & 0xFF)


def decode_report(words: Sequence[bytes], seats: int) -> Report:
    """Returns the report that the words encode. Raises ReportError on anything not canonical.

    Canonical means: encoded as by `Report.words`, known verdicts, weight 0 under any verdict but `ACCEPTED`, and no
    vote on a seat beyond `seats`.
    """
    report = read_report(words, seats)
    if report is None:
        raise ReportError(f"a report has at least {HEAD_WORDS} words, not {len(words)}")
    for vote in report.votes:
        if vote.verdict not in Verdict.__members__.values():
            raise ReportError(f"unknown verdict {vote.verdict}")
        if vote.weight != vote.counted_weight:
            raise ReportError("a weight under a verdict other than accepted")
    if report.words() != list(words):
        raise ReportError("not the canonical encoding")
    return report


def report_commitment(
    chain_id: int, contract: str, run: int, round: int, validator: str, report_hash: bytes, salt: bytes
) -> bytes:
    """Returns a validator's commitment to its report; `validator` is the seat's owner."""
    return keccak_abi(
        ["uint256", "address", "uint256", "uint256", "address", "bytes32", "bytes32"],
        [chain_id, contract, run, round, validator, report_hash, salt],
    )
