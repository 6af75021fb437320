"""A value that changes from round to round: keys, stakes and owners of seats. Protocol section 3."""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class Timeline(Generic[T]):
    """A value by round: `initial` until the first change, then the value of the newest change."""

    initial: T
    changes: list[tuple[int, T]] = field(default_factory=list[tuple[int, T]])
    """(first round, value), in ascending order of rounds."""

    def set(self, from_round: int, value: T) -> None:
        """Changes the value from `from_round` on; a later call replaces changes at that round or after it."""
        while self.changes and self.changes[-1][0] >= from_round:
            self.changes.pop()
        self.changes.append((from_round, value))

    def at(self, round: int) -> T:
        """Returns the value that counts in `round`."""
        return next((value for start, value in reversed(self.changes) if start <= round), self.initial)

    @property
    def latest(self) -> T:
        """The newest value, which may count from a round still to come."""
        return self.changes[-1][1] if self.changes else self.initial
