"""The steps by which an account takes part: funding a run, putting up a bond, taking a seat, leaving, being paid.

Each function lists the calls that are still missing, from what the chain says at one block, so that repeating a
command after a crash continues where it stopped. Nothing is sent here.
"""

from __future__ import annotations

from dataclasses import dataclass

from earnest.client.chain.blockref import BlockRef
from earnest.client.chain.contracts import Call, Contracts
from earnest.client.errors import EarnestError
from earnest.protocol.constants import NO_SEAT
from earnest.protocol.merkle import admission_proof
from earnest.protocol.run import RunParams
from earnest.protocol.verdicts import Role


class NotAdmittedError(EarnestError):
    """The account is not on the run's admission list."""


@dataclass(frozen=True)
class Step:
    """One transaction of a sequence: a name for the journal, what it is for in plain words, and the call."""

    name: str
    purpose: str
    call: Call


def deposit_steps(contracts: Contracts, account: str, amount: int, at: BlockRef) -> list[Step]:
    """Moves `amount` wei of the token into the account's idle balance. Raises EarnestError when it has less."""
    held = contracts.token.balance_of(account, at=at)
    if held < amount:
        raise EarnestError(
            f"{account} holds {held} wei of the token, {amount} are needed",
            "get more of the token; on a local chain: `earnest token mint`",
        )
    steps = []
    if contracts.token.allowance(account, contracts.vault.address, at=at) < amount:
        steps.append(
            Step(
                "approve",
                "let the vault take the deposit",
                contracts.token.approve(contracts.vault.address, amount),
            )
        )
    return [*steps, Step("deposit", "deposit into the vault", contracts.vault.deposit(amount))]


def topped_up(contracts: Contracts, account: str, amount: int, at: BlockRef) -> list[Step]:
    """The deposit that is missing for an idle balance of `amount` wei; none when there is enough."""
    missing = amount - contracts.vault.idle(account, at=at)
    return deposit_steps(contracts, account, missing, at) if missing > 0 else []


def fund_steps(contracts: Contracts, sponsor: str, params: RunParams, uri: str, at: BlockRef) -> list[Step]:
    """Opens a run: the budget into the vault, the allowance for Settlement, then `create_run`."""
    budget = params.budget
    steps = topped_up(contracts, sponsor, budget, at)
    if contracts.vault.allowance(sponsor, contracts.settlement.address, at=at) != budget:
        allow = contracts.vault.allow(contracts.settlement.address, budget)
        steps.append(Step("allow", "let the run take its budget", allow))
    return [*steps, Step("create", "open the run", contracts.runs.create_run(params, uri))]


def join_steps(
    contracts: Contracts,
    run: int,
    role: Role,
    account: str,
    *,
    bond: int,
    operator: str,
    uri: str,
    admission: tuple[tuple[str, Role], ...],
    take: int | None,
    at: BlockRef,
) -> list[Step]:
    """Takes a seat: the missing part of the bond, then `join`. `take` names the seat to take over when all are held.

    Raises NotAdmittedError when the run lists its participants and the account is not among them.
    """
    params = contracts.runs.run_params(run, at=at)
    proof = _proof(params, admission, account, role)
    standing = contracts.vault.bond_of(contracts.settlement.address, run, account, at=at)
    steps: list[Step] = []
    if standing < bond:
        steps += topped_up(contracts, account, bond - standing, at)
        put = contracts.vault.bond(contracts.settlement.address, run, bond - standing)
        steps.append(Step("bond", "put up the bond for this run", put))
    seat = NO_SEAT if take is None else take
    join = contracts.runs.join(run, role, operator, uri, proof, seat)
    return [*steps, Step("join", f"take a {role.name.lower()} seat", join)]


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


def leave_steps(
    contracts: Contracts, run: int, role: Role, seat: int, account: str, at: BlockRef
) -> list[Step]:
    """Starts the exit of the bond and gives the seat's stake up from the next round."""
    manager, steps = contracts.settlement.address, []
    if contracts.vault.exit_time(manager, run, account, at=at) is None:
        steps.append(Step("exit", "start the bond's exit", contracts.vault.start_exit(manager, run)))
    return [*steps, Step("sync", "tell the run", contracts.runs.sync(run, role, seat))]
