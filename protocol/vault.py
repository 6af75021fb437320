"""Money: the reference of `StakeVault`. Protocol section 2.

Each wei is in exactly one of four buckets: idle, bond, escrow, burned. Methods have the contract's names and raise
`Refused` with its reasons, and then change nothing. The caller (an account, or the manager of a run) is the first
argument, block time the last. Reverts of the token itself are not modelled.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from earnest.protocol.constants import AMOUNT_LIMIT, MAX_EXIT_DELAY_S, ZERO_ADDRESS
from earnest.protocol.require import require

RunKey = tuple[str, int]
"""(manager, run)"""

BondKey = tuple[str, int, str]
"""(manager, run, account)"""


@dataclass
class VaultRun:
    """A run as the vault knows it."""

    escrow: int = 0
    sponsor: str = ZERO_ADDRESS
    released: bool = False
    """True once its bonds wait no longer."""

    exit_delay: int = 0
    """Seconds from `start_exit` until a bond can be withdrawn; 0 if the run was never opened.

    Its minimum depends on the run's windows: `_checks` in `run.py`, from `least_exit_delay` in `schedule.py`.
    """


@dataclass
class VaultModel:
    """All money of the protocol, in wei. `balance` is the vault's token balance without donations."""

    balance: int = 0
    idle: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    allowances: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    bonds: defaultdict[BondKey, int] = field(default_factory=lambda: defaultdict(int))
    exits: dict[BondKey, int] = field(default_factory=dict[BondKey, int])
    runs: defaultdict[RunKey, VaultRun] = field(default_factory=lambda: defaultdict(VaultRun))
    burned: int = 0

    # Anyone, for their own money.

    def deposit(self, account: str, amount: int) -> None:
        self.balance += amount
        self.idle[account] += amount

    def withdraw(self, account: str, amount: int) -> None:
        self._take_idle(account, amount)
        self.balance -= amount

    def allow(self, account: str, manager: str, amount: int) -> None:
        """Sets (does not add) the amount that `open_run` by the manager may take."""
        self.allowances[account, manager] = amount

    def bond(self, account: str, manager: str, run: int, amount: int) -> None:
        key = manager, run, account
        require(self.exit_delay(manager, run) != 0, "vault: no such run")
        require(key not in self.exits, "vault: exit has started")
        require(self.idle[account] >= amount, "vault: idle balance too small")
        require(self.bonds[key] + amount < AMOUNT_LIMIT, "vault: bond too large")
        self._take_idle(account, amount)
        self.bonds[key] += amount

    def start_exit(self, account: str, manager: str, run: int, now: int) -> None:
        key = manager, run, account
        require(self.bonds[key] != 0 or key in self.exits, "vault: nothing bonded")
        require(key not in self.exits, "vault: exit already started")
        self.exits[key] = now + self.exit_delay(manager, run)

    def finish_exit(self, account: str, manager: str, run: int, now: int) -> None:
        """Moves the rest of the bond to the idle balance; the manager cannot prevent it.

        In a run whose bonds are released, no exit has to be started.
        """
        key = manager, run, account
        if not self.runs[manager, run].released:
            require(key in self.exits, "vault: no exit started")
            require(now >= self.exits[key], "vault: exit not over")
        self.exits.pop(key, None)
        self.idle[account] += self.bonds.pop(key, 0)

    def flush(self) -> int:
        """Sends burned money to the sink. Returns the amount."""
        amount, self.burned = self.burned, 0
        self.balance -= amount
        return amount

    # A manager, for its own runs only.

    def open_run(self, manager: str, run: int, sponsor: str, amount: int, exit_delay: int) -> None:
        require(self.exit_delay(manager, run) == 0, "vault: run already open")
        require(0 < exit_delay <= MAX_EXIT_DELAY_S, "vault: exit delay out of range")
        require(self.allowances[sponsor, manager] >= amount, "vault: allowance too small")
        self._take_idle(sponsor, amount)
        self.allowances[sponsor, manager] -= amount
        self.runs[manager, run] = VaultRun(amount, sponsor, exit_delay=exit_delay)

    def release(self, manager: str, run: int) -> None:
        """Ends the exit delay of all bonds of the run, for ever."""
        require(self.exit_delay(manager, run) != 0, "vault: no run to release")
        self.runs[manager, run].released = True

    def pay(self, manager: str, run: int, payments: Sequence[tuple[str, int]]) -> None:
        """Moves escrow to idle balances. Payments are (account, wei); the contract packs one as account << 96 | wei."""
        self._take_escrow(manager, run, sum(amount for _, amount in payments))
        for account, amount in payments:
            self.idle[account] += amount

    def refund(self, manager: str, run: int, amount: int) -> None:
        self._take_escrow(manager, run, amount)
        self.idle[self.sponsor(manager, run)] += amount

    def burn_escrow(self, manager: str, run: int, amount: int) -> None:
        self._take_escrow(manager, run, amount)
        self.burned += amount

    def seize(self, manager: str, run: int, account: str, amount: int) -> int:
        """Burns up to `amount` of a bond, exiting or not; never refused. Returns the amount seized."""
        key = manager, run, account
        taken = min(amount, self.bonds[key])
        self.bonds[key] -= taken
        self.burned += taken
        return taken

    # Views.

    def allowance(self, account: str, manager: str) -> int:
        return self.allowances[account, manager]

    def bond_of(self, manager: str, run: int, account: str) -> int:
        """Returns the bond, exiting or not."""
        return self.bonds[manager, run, account]

    def exit_time(self, manager: str, run: int, account: str) -> int:
        """Returns the time from which the bond can be taken back, unix seconds; 0 if no exit was started."""
        return self.exits.get((manager, run, account), 0)

    def live_bond(self, manager: str, run: int, account: str) -> int:
        """Returns the live bond: 0 once an exit has started."""
        return 0 if (manager, run, account) in self.exits else self.bond_of(manager, run, account)

    def escrow(self, manager: str, run: int) -> int:
        return self.runs[manager, run].escrow

    def exit_delay(self, manager: str, run: int) -> int:
        return self.runs[manager, run].exit_delay

    def sponsor(self, manager: str, run: int) -> str:
        return self.runs[manager, run].sponsor

    def total(self) -> int:
        """Returns the sum of all buckets, equal to `balance` at all times (invariant 1)."""
        escrows = sum(run.escrow for run in self.runs.values())
        return sum(self.idle.values()) + sum(self.bonds.values()) + escrows + self.burned

    def _take_idle(self, account: str, amount: int) -> None:
        require(self.idle[account] >= amount, "vault: idle balance too small")
        self.idle[account] -= amount

    def _take_escrow(self, manager: str, run: int, amount: int) -> None:
        require(self.escrow(manager, run) >= amount, "vault: escrow too small")
        self.runs[manager, run].escrow -= amount
