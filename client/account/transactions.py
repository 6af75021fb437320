"""The transactions of an account: funding a run, bonding, taking a seat, leaving, withdrawing, contesting.

Each function returns the calls that are still missing at one block, so that a command that is repeated after a crash
continues where it stopped. Nothing is sent here.
"""

from __future__ import annotations

from dataclasses import dataclass

from earnest.base.amounts import format_amount
from earnest.base.errors import EarnestError, Reverted
from earnest.client.chain.blockref import BlockRef
from earnest.client.chain.contracts import Call, Contracts, PenaltyStatus, SeatId
from earnest.protocol.constants import NO_SEAT
from earnest.protocol.merkle import admission_proof
from earnest.protocol.run import Role, RunParams

MAX_URI_BYTES = 256
BOND_TOO_SMALL = "runs: bond too small"


class NotAdmittedError(EarnestError):
    """The account is not on the run's admission list."""


class NoSeatError(EarnestError):
    """The account has no seat in the run."""


class NotDueError(EarnestError):
    """The request is not possible now: too early, too late, or nothing to do."""


@dataclass(frozen=True)
class PlannedCall:
    """One transaction of a sequence: a name for the journal, its purpose as text, and the call."""

    name: str
    purpose: str
    call: Call


def tokens(contracts: Contracts, wei: int, at: BlockRef) -> str:
    """Returns an amount as text: `12.5 PLAY`."""
    token = contracts.token
    return f"{format_amount(wei, token.decimals(at=at))} {token.symbol(at=at)}"


def mint_calls(contracts: Contracts, receiver: str, amount: int) -> list[PlannedCall]:
    """Mints `amount` wei of a play token; its deployer only."""
    return [PlannedCall("mint", "make play tokens", contracts.token.mint(receiver, amount))]


def deposit_calls(contracts: Contracts, account: str, amount: int, at: BlockRef) -> list[PlannedCall]:
    """Moves `amount` wei of the token into the account's idle balance. Raises EarnestError if the account has less."""
    held = contracts.token.balance_of(account, at=at)
    if held < amount:
        raise EarnestError(
            f"{account} holds {tokens(contracts, held, at)}, {tokens(contracts, amount, at)} are needed",
            f"get more of the token; on a local chain, with the key that deployed: "
            f"`earnest token mint AMOUNT --to {account}`",
        )
    steps = []
    if contracts.token.allowance(account, contracts.vault.address, at=at) < amount:
        steps.append(
            PlannedCall(
                "approve",
                "let the vault take the deposit",
                contracts.token.approve(contracts.vault.address, amount),
            )
        )
    purpose = f"deposit {tokens(contracts, amount, at)} into the vault"
    return [*steps, PlannedCall("deposit", purpose, contracts.vault.deposit(amount))]


def checked_uri(uri: str) -> str:
    """Returns the URI. Raises EarnestError if it is too long for the contract."""
    if len(uri.encode()) > MAX_URI_BYTES:
        raise EarnestError(
            f"a URI has at most {MAX_URI_BYTES} bytes, this one {len(uri.encode())}", "shorten it"
        )
    return uri


def topped_up(contracts: Contracts, account: str, amount: int, at: BlockRef) -> list[PlannedCall]:
    """Returns the calls that raise the idle balance to `amount` wei; none if it has enough."""
    missing = amount - contracts.vault.idle(account, at=at)
    return deposit_calls(contracts, account, missing, at) if missing > 0 else []


def fund_calls(
    contracts: Contracts, sponsor: str, params: RunParams, uri: str, at: BlockRef
) -> list[PlannedCall]:
    """Opens a run: the budget into the vault, the allowance for Settlement, then `create_run`."""
    budget = params.budget
    steps = topped_up(contracts, sponsor, budget, at)
    if contracts.vault.allowance(sponsor, contracts.settlement.address, at=at) != budget:
        allow = contracts.vault.allow(contracts.settlement.address, budget)
        purpose = f"let the run take its budget of {tokens(contracts, budget, at)}"
        steps.append(PlannedCall("allow", purpose, allow))
    return [
        *steps,
        PlannedCall(
            "create",
            "open the run and pay its budget into escrow",
            contracts.terms.create_run(params, checked_uri(uri)),
        ),
    ]


@dataclass(frozen=True)
class SeatRequest:
    """The seat that an account wants in a run: `bond` in wei; `take` is the seat to take over if none is free."""

    run: int
    role: Role
    account: str
    bond: int
    operator: str
    uri: str = ""
    take: int | None = None


def join_calls(
    contracts: Contracts, wanted: SeatRequest, admission: tuple[tuple[str, Role], ...], at: BlockRef
) -> list[PlannedCall]:
    """Takes a seat: the missing part of the bond, then `join`.

    Raises NotAdmittedError if the account is not on the run's admission list, NotDueError if the
    account has a seat already or is taking its bond out, or if the chain would refuse `join` once the bond is up.
    """
    run, role, account = wanted.run, wanted.role, wanted.account
    name = role.name.lower()
    params = contracts.runs.run_params(run, at=at)
    if (held := contracts.runs.seat_of(run, account, at=at)) is not None:
        held_name = held.role.name.lower()
        raise NotDueError(
            f"{account} has {held_name} seat {held.seat} of run {run} already",
            f"start its node: `earnest {held_name} start {run}`",
        )
    _check_staying(contracts, run, account, at)
    proof = _proof(params, admission, account, role)
    seat = NO_SEAT if wanted.take is None else wanted.take
    join = contracts.runs.join(run, role, wanted.operator, checked_uri(wanted.uri), proof, seat)
    missing = wanted.bond - contracts.vault.bond_of(contracts.settlement.address, run, account, at=at)
    _check_seat(contracts, wanted, params, join, max(wanted.bond, wanted.bond - missing), at)
    steps = _bond_steps(contracts, run, account, missing, at) if missing > 0 else []
    return [*steps, PlannedCall("join", f"take a {name} seat of run {run}", join)]


def _bond_steps(contracts: Contracts, run: int, account: str, amount: int, at: BlockRef) -> list[PlannedCall]:
    put = contracts.vault.bond(contracts.settlement.address, run, amount)
    purpose = f"put up {tokens(contracts, amount, at)} as bond for run {run}"
    return [*topped_up(contracts, account, amount, at), PlannedCall("bond", purpose, put)]


def _check_seat(
    contracts: Contracts, wanted: SeatRequest, params: RunParams, join: Call, bond: int, at: BlockRef
) -> None:
    """Raises if `join` would fail after the bond is up: that bond would be out of reach for the exit delay.

    The chain runs `join` for every check that comes before the bond's; the later ones are repeated here. Whether a
    seat may be taken over is only known to the chain: it is checked here if the account's bond is up already.
    """
    run, role, take = wanted.run, wanted.role, wanted.take
    name = role.name.lower()
    minimum, limit = (
        (params.trainer_min_bond, params.trainer_limit)
        if role is Role.TRAINER
        else (params.validator_min_bond, params.validator_limit)
    )
    if bond < minimum:
        raise NotDueError(
            f"the bond of a {name} is at least {tokens(contracts, minimum, at)}, not {tokens(contracts, bond, at)}",
            "give a larger --bond, or leave it out for the minimum",
        )
    if int(wanted.operator, 16) == 0:
        raise NotDueError("the zero address cannot be an operator", "give the address of your node's key")
    try:
        contracts.runs.chain.call(join.to, join.data, at, sender=wanted.account)
    except Reverted as refusal:
        if refusal.reason != BOND_TOO_SMALL:
            raise
    taken = contracts.runs.seat_counts(run, at=at)[role - 1]
    if taken >= limit and take is None:
        raise NotDueError(
            f"all {limit} {name} seats of run {run} are taken",
            f"see `earnest run show {run}`: `--take SEAT` takes over an inactive seat or the smallest bond",
        )
    if taken < limit and take is not None:
        raise NotDueError(f"run {run} has free {name} seats", "leave out --take")


def _check_staying(contracts: Contracts, run: int, account: str, at: BlockRef) -> None:
    """Raises NotDueError if an exit has started: what is deposited now could not become a bond."""
    ready = contracts.vault.exit_time(contracts.settlement.address, run, account, at=at)
    if ready is not None:
        raise NotDueError(
            f"the exit of {account}'s bond in run {run} has started, nothing can be added to it",
            f"take the bond back with `earnest stake exit {run}` from unix time {ready} on, then start again",
        )


def _proof(
    params: RunParams, admission: tuple[tuple[str, Role], ...], account: str, role: Role
) -> list[bytes]:
    if role is Role.TRAINER and params.open_trainers:
        return []
    if (account, role) not in admission:
        raise NotAdmittedError(
            f"{account} is not on the run's list of admitted {role.name.lower()}s",
            "ask the sponsor of a run that admits you, or use the account that was admitted",
        )
    return admission_proof(admission, account, role)


def held_seat(contracts: Contracts, run: int, account: str, at: BlockRef) -> SeatId:
    """Returns the account's seat in the run. Raises NoSeatError."""
    held = contracts.runs.seat_of(run, account, at=at)
    if held is None:
        raise NoSeatError(
            f"{account} has no seat in run {run}",
            f"take one: `earnest run join {run} --role trainer` (or validator)",
        )
    return held


def bond_calls(contracts: Contracts, run: int, account: str, amount: int, at: BlockRef) -> list[PlannedCall]:
    """Adds `amount` wei to the account's bond for the run; counts from the next round on if it has a seat.

    Raises NotDueError if the account is taking its bond out.
    """
    _check_staying(contracts, run, account, at)
    return _bond_steps(contracts, run, account, amount, at) + _synced(contracts, run, account, at)


def withdraw_calls(contracts: Contracts, account: str, amount: int | None, at: BlockRef) -> list[PlannedCall]:
    """Takes `amount` wei (None: all) of the idle balance out of the vault. Raises NotDueError if there is less."""
    idle = contracts.vault.idle(account, at=at)
    wanted = idle if amount is None else amount
    if wanted == 0 or wanted > idle:
        raise NotDueError(
            f"{account} has {tokens(contracts, idle, at)} idle in the vault"
            + (f", {tokens(contracts, amount, at)} were requested" if amount is not None else ""),
            "see what is bonded: `earnest stake show`; a bond is freed with `earnest stake exit`",
        )
    purpose = f"take {tokens(contracts, wanted, at)} out of the vault"
    return [PlannedCall("withdraw", purpose, contracts.vault.withdraw(wanted))]


def leave_calls(
    contracts: Contracts, run: int, role: Role, seat: int, account: str, at: BlockRef
) -> list[PlannedCall]:
    """Starts the exit of the bond, and removes the seat's stake from the next round on."""
    manager, steps = contracts.settlement.address, []
    if contracts.vault.exit_time(manager, run, account, at=at) is None:
        steps.append(PlannedCall("exit", "start the bond's exit", contracts.vault.start_exit(manager, run)))
    return [*steps, PlannedCall("sync", "update the stake in the run", contracts.runs.sync(run, role, seat))]


def exit_calls(contracts: Contracts, run: int, account: str, at: BlockRef) -> list[PlannedCall]:
    """Starts the exit of a bond or, once its delay is over, takes the bond back. Raises NotDueError in between."""
    vault, manager = contracts.vault, contracts.settlement.address
    bonded = vault.bond_of(manager, run, account, at=at) > 0
    if bonded and (steps := _released(contracts, run, at)) is not None:
        return [*steps, PlannedCall("finish-exit", "take the bond back", vault.finish_exit(manager, run))]
    ready = vault.exit_time(manager, run, account, at=at)
    if ready is not None and at.time < ready:
        raise NotDueError(
            f"the exit of this bond takes another {ready - at.time} s",
            "repeat the command then; an exit cannot be stopped",
        )
    if ready is not None:
        return [PlannedCall("finish-exit", "take the bond back", vault.finish_exit(manager, run))]
    if not bonded:
        raise NotDueError(f"{account} has no bond in run {run}", "see `earnest stake show`")
    start = PlannedCall("exit", "start the bond's exit", vault.start_exit(manager, run))
    return [start, *_synced(contracts, run, account, at)]


def _released(contracts: Contracts, run: int, at: BlockRef) -> list[PlannedCall] | None:
    """Returns what has to be sent before a bond of a run that is over can be taken back; None if it is not over."""
    if contracts.vault.released(contracts.settlement.address, run, at=at):
        return []
    over = (
        contracts.runs.run_params(run, at=at).schedule().bonds_free_at(contracts.runs.run_rounds(run, at=at))
    )
    if at.time < over:
        return None
    return [PlannedCall("release", "free the run's bonds", contracts.settlement.release_bonds(run))]


def _synced(contracts: Contracts, run: int, account: str, at: BlockRef) -> list[PlannedCall]:
    held = contracts.runs.seat_of(run, account, at=at)
    return [] if held is None else sync_calls(contracts, run, held)


def sync_calls(contracts: Contracts, run: int, held: SeatId) -> list[PlannedCall]:
    """Updates the run's record of the seat owner's bond; anyone may send it."""
    return [
        PlannedCall("sync", "update the stake in the run", contracts.runs.sync(run, held.role, held.seat))
    ]


def operator_calls(
    contracts: Contracts, run: int, account: str, operator: str, at: BlockRef
) -> list[PlannedCall]:
    """Lets another key commit, reveal and report for the account's seat from the next round on."""
    held = held_seat(contracts, run, account, at)
    change = contracts.runs.set_operator(run, held.role, held.seat, operator)
    return [PlannedCall("operator", "change the seat's operator", change)]


def uri_calls(contracts: Contracts, run: int, held: SeatId, uri: str) -> list[PlannedCall]:
    """Changes the URI of the seat's objects; owner or operator."""
    change = contracts.runs.set_uri(run, held.role, held.seat, checked_uri(uri))
    return [PlannedCall("uri", "change the URI of the seat's objects", change)]


def end_calls(contracts: Contracts, run: int) -> list[PlannedCall]:
    """Ends a run after the current round and the next one; sponsor only."""
    return [PlannedCall("end", "end the run after the next round", contracts.runs.end(run))]


def refund_calls(contracts: Contracts, run: int) -> list[PlannedCall]:
    """Refunds the escrow that the run no longer needs to its sponsor; anyone may send it."""
    return [PlannedCall("refund", "refund the sponsor", contracts.settlement.refund(run))]


def refund_due(contracts: Contracts, run: int, account: str, at: BlockRef) -> bool:
    """Returns True if `refund` would pay the sponsor now; simulates the call."""
    if contracts.vault.escrow(contracts.settlement.address, run, at=at) == 0:
        return False
    call = contracts.settlement.refund(run)
    try:
        contracts.settlement.chain.call(call.to, call.data, at, sender=account)
    except Reverted:
        return False
    return True


def contest_calls(contracts: Contracts, penalty: bytes, account: str, at: BlockRef) -> list[PlannedCall]:
    """Contests a penalty locked on the account. Raises NotDueError if it cannot be contested (any more)."""
    state = contracts.settlement.penalty(penalty, at=at)
    if state.status is PenaltyStatus.NONE:
        raise NotDueError(f"there is no penalty {penalty.hex()}", "list them: `earnest penalty show RUN`")
    if state.account != account:
        raise NotDueError(f"this penalty is on {state.account}, not on {account}", "use that account's key")
    if state.status is not PenaltyStatus.LOCKED:
        raise NotDueError(f"the penalty is {state.status.name.lower()} already", "there is nothing to do")
    if at.time >= state.contest_until:
        raise NotDueError(
            "the contest window is over", "the penalty can only be settled: `earnest run settle`"
        )
    return [PlannedCall("contest", "contest the penalty", contracts.settlement.contest(penalty))]
