"""`earnest trainer` and `earnest validator`: start a node and run it until the end of the run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from earnest.attestation.roots import SIMULATED_WARNING
from earnest.cli.app import make_group
from earnest.cli.commands.attest.keys import INTEL_PCS, AttesterKind, Count, collateral_source, make_attester
from earnest.cli.exits import UsageError
from earnest.cli.flags import LayoutFlags, NodeFlags, RunNumber
from earnest.cli.output import Answer, countdown
from earnest.cli.session import Session
from earnest.cli.transactions import consent, transact
from earnest.client.account.transactions import held_seat, uri_calls
from earnest.protocol.run import Role

if TYPE_CHECKING:
    from earnest.client.account.account import Account
    from earnest.client.chain.contracts import SeatId
    from earnest.client.node.node import Node, NodeParts
    from earnest.client.run.bundle import RunFiles
    from earnest.client.run.record import SeatRecord
    from earnest.client.trainer.attested_rounds import AttestedRounds
    from earnest.training.diloco.engine import Machine
    from earnest.training.parallel import ParallelTrainer

    Make = Callable[["AtWork"], Node]

trainer, validator = make_group("trainer"), make_group("validator")
NODE, ALONE = NodeFlags(), LayoutFlags()
TEE = Group("Attestation", sort_key=37)


@Parameter(name="*")
@dataclass(frozen=True)
class AttesterFlags:
    """Options of a trainer in an attested run (docs/attestation.md)."""

    attester: Annotated[AttesterKind | None, Parameter(group=TEE)] = None
    """Register a key in this machine's TEE and sign with it: Linux in a TDX guest, dstack, or SIMULATED (NOT A TEE)."""

    collateral: Annotated[Path | None, Parameter(group=TEE)] = None
    """File with Intel's collateral for this machine (default: downloaded and cached)."""

    pccs: Annotated[str, Parameter(group=TEE)] = INTEL_PCS
    """URL to download collateral from: Intel's service or a caching one."""

    socket: Annotated[Path | None, Parameter(group=TEE)] = None
    """Socket of the dstack agent (default: dstack's own)."""

    code: Annotated[str, Parameter(group=TEE)] = ""
    """Code that a simulated machine measures."""

    platform: Annotated[Count, Parameter(group=TEE)] = 0
    """Number of the simulated machine."""


BARE = AttesterFlags()


@dataclass(frozen=True)
class AtWork:
    """An opened account and a run's files: the parts of a node."""

    session: Session
    account: Account
    parts: NodeParts
    files: RunFiles


@trainer.command(name="start")
def start_trainer(
    run: RunNumber,
    /,
    *,
    owner: str | None = None,
    poll: float = 1.0,
    patience: int = 300,
    private_data: str | None = None,
    device: str = "auto",
    threads: int = 1,
    micro_batch: int = 0,
    compile: str = "",
    processes: LayoutFlags = ALONE,
    tee: AttesterFlags = BARE,
    flags: NodeFlags = NODE,
) -> Answer:
    """Train, commit, reveal and serve for your trainer seat, until the run is over or the node is stopped.

    If the node is killed, the same command continues where it stopped: what it committed to is on disk.

    Example: earnest trainer start 1 --serve 0.0.0.0:9100 --public-url http://my.host:9100

    Parameters
    ----------
    run
        The run's number.
    owner
        Owner of the seat, if your key is its operator (default: your own account).
    poll
        Seconds between two reads of the chain.
    patience
        Seconds to wait for others to settle first.
    private_data
        Your data, for a run on private data: module:name of a `PrivateBatches`. It never leaves this machine.
    device
        Device that trains: cpu, cuda, cuda:1, mps. auto chooses CUDA if present, else MPS, else the CPU.
    threads
        Number of CPU threads for training.
    micro_batch
        Samples per forward pass. Gradients are summed, so only rounding differs (0: the whole batch).
    compile
        Backend of torch.compile, for example inductor (default: no compilation).
    """
    if threads < 1 or micro_batch < 0:
        raise UsageError("--threads must be positive, --micro-batch not negative", "correct these numbers")
    if processes.layout and (micro_batch or compile):
        raise UsageError(
            "--micro-batch and --compile are for one process",
            "give micro-batches in the layout: --layout pp2-mb4",
        )
    resources = ExitStack()

    def make(at_work: AtWork) -> Node:
        from earnest.client.trainer.node import TrainerNode
        from earnest.training.diloco.engine import (
            Machine,
        )  # imports torch, which a refused command does not need
        from earnest.training.tasks.own import load_private

        private = None if private_data is None else load_private(private_data)
        machine = Machine(device, threads, micro_batch, compile)
        parts = at_work.parts
        attested_rounds = _attested_rounds(at_work, tee)
        several = None
        if processes.layout:
            several = resources.enter_context(_several(processes, parts, machine))
        return TrainerNode(
            parts,
            at_work.files.task,
            patience=patience,
            private=private,
            machine=machine,
            trainer=several,
            attested_rounds=attested_rounds,
        )

    with resources:
        return _run_node(run, Role.TRAINER, owner, poll, patience, flags, make)


def _several(flags: LayoutFlags, parts: NodeParts, machine: Machine) -> ParallelTrainer:
    """Returns the processes that the flags describe. Raises LayoutError, UsageError."""
    from earnest.training.parallel import Layout, ParallelTrainer, Rendezvous, WorkerGroup

    layout = Layout.parse(flags.layout or "")
    here = flags.processes_here or -(-layout.processes // flags.hosts)
    address, _, port = flags.meet.rpartition(":")
    if flags.hosts > 1 and not (address and port.isdecimal()):
        raise UsageError("several hosts need an address to connect to", "give --meet HOST:PORT of this host")
    rendezvous = Rendezvous(flags.hosts, here, address, int(port)) if flags.hosts > 1 else Rendezvous(1, here)
    follower = parts.follower
    return ParallelTrainer(
        follower.recipe,
        follower.record.params.rounds,
        layout,
        WorkerGroup(rendezvous, flags.step_timeout),
        device=machine.device,
        threads=machine.threads,
    )


def _attested_rounds(at_work: AtWork, flags: AttesterFlags) -> AttestedRounds | None:
    """Returns the trainer's attester; None if the flags name none. Warns about a simulated or a missing attester.

    Raises UsageError for an attester in a run without attestation.
    """
    from earnest.client.trainer.attested_rounds import AttestedRounds
    from earnest.client.trainer.enclave_keys import EnclaveKeys
    from earnest.protocol.run import Level

    session, parts, policy = at_work.session, at_work.parts, at_work.files.bundle.attestation
    record = parts.follower.record
    if flags.attester is None:
        if record.params.level == Level.ATTESTED:
            session.notice("this run counts only attested updates: without --attester there is no pay")
        return None
    if policy is None:
        raise UsageError(f"run {record.run} does not use attestation", "start the node without --attester")
    if flags.attester == "simulated":
        session.notice(SIMULATED_WARNING)
    machine = make_attester(session, flags.attester, flags.socket, flags.code, flags.platform)
    judged = collateral_source(session, flags.collateral, flags.pccs)
    random = session.environment.random
    keeper = EnclaveKeys.of(at_work.account, record.run, machine, policy, random, collateral=judged)
    return AttestedRounds(keeper, record.run, parts.journal, parts.chain.head)


@validator.command(name="start")
def start_validator(
    run: RunNumber,
    /,
    *,
    owner: str | None = None,
    poll: float = 1.0,
    patience: int = 0,
    flags: NodeFlags = NODE,
) -> Answer:
    """Fetch, judge, report and settle for your validator seat, until the run is over or the node is stopped.

    If the node is killed, the same command continues where it stopped: a committed report is on disk.

    Example: earnest validator start 1 --serve 0.0.0.0:9200 --public-url http://my.host:9200

    Parameters
    ----------
    run
        The run's number.
    owner
        Owner of the seat, if your key is its operator (default: your own account).
    poll
        Seconds between two reads of the chain.
    patience
        Seconds to wait for others to settle first.
    """

    def make(at_work: AtWork) -> Node:
        from earnest.validator.node import (
            ValidatorNode,
        )  # imports torch, which a refused command does not need

        return ValidatorNode(at_work.parts, at_work.files.task, patience=patience)

    return _run_node(run, Role.VALIDATOR, owner, poll, patience, flags, make)


def _run_node(
    run: int, role: Role, owner: str | None, poll: float, patience: int, flags: NodeFlags, make: Make
) -> Answer:
    if flags.dry_run:
        raise UsageError("nodes do not support --dry-run", "check the setup with `earnest doctor RUN`")
    if poll <= 0 or patience < 0:
        raise UsageError("--poll must be positive, --patience not negative", "correct these numbers")
    with Session(flags) as session:
        role_name = role.name.lower()
        spends = "pays the gas of its own calls and, when others are late, of settling, until the run is over"
        consent(session, [f"start the {role_name} of run {run}: it {spends}"])
        _start_logs(session)
        address = session.address(owner)
        held = _seat(session, run, role, address)
        _check_operator(session, run, held)
        account = session.open_account(address)
        with session.environment.stopping() as stop:
            url = _serve(session, account)
            parts, files = account.follow(run, lambda: session.environment.random(32))
            seat = parts.follower.record.seats[role].get(held.seat)
            _register(session, account, run, held, url, seat)
            node = make(AtWork(session, account, parts, files))
            from earnest.client.node.node import run_forever

            left = parts.follower.record.params.start - session.at.time
            start = f"; round 0 starts in {countdown(left)}" if left > 0 else ""
            session.notice(f"{role.name.lower()} seat {held.seat} of run {run} at work for {address}{start}")
            run_forever(node, session.environment.clock, stop, poll)
        state = "the run is over" if node.finished else "stopped"
        document = {
            "run": run,
            "role": role,
            "seat": held.seat,
            "account": address,
            "url": url,
            "finished": node.finished,
            **node.figures(),
        }
        shown = [f"{role.name.capitalize()} seat {held.seat} of run {run}: {state}."]
        if "time" in document:
            shown.append(
                f"The device was idle for {document['time']['idle_share']:.1%} of the node's working time."
            )
        return Answer(document, shown)


def _start_logs(session: Session) -> None:
    from earnest.base.logs import configure_logs

    settings = session.settings
    secret = settings.keystore_password()
    configure_logs(
        session.environment.stderr,
        session.environment.clock,
        json=settings.log_format == "json",
        level=settings.log_level,
        secrets=[secret] if secret else [],
    )


def _seat(session: Session, run: int, role: Role, account: str) -> SeatId:
    """Returns the account's seat. Raises NoSeatError, before anything is opened, and UsageError for another role."""
    held = held_seat(session.contracts, run, account, session.at)
    if held.role is not role:
        other = held.role.name.lower()
        raise UsageError(
            f"{account} has a {other} seat in run {run}", f"start that node: `earnest {other} start {run}`"
        )
    return held


def _serve(session: Session, account: Account) -> str | None:
    """Starts the server of public objects if the settings ask for one. Returns the URL for others, or None."""
    address = session.settings.serve_address
    served = None if address is None else account.serve(*address)
    public_url = session.settings.public_url
    if served is None and public_url is None:
        session.notice("without --serve or --public-url, nobody can fetch what this node publishes")
    return public_url.rstrip("/") if public_url else served


def _check_operator(session: Session, run: int, held: SeatId) -> None:
    """Raises UsageError if the key is not the seat's operator, in this round or the next."""
    runs, at = session.contracts.runs, session.at
    following = runs.run_params(run, at=at).schedule().next_round(at.time)
    rounds = {max(0, following - 1), following}
    seats = [runs.seat_at(run, held.role, held.seat, round, at=at) for round in sorted(rounds)]
    operators = [seat.operator for seat in seats if seat.operator is not None]
    if operators and session.account not in operators:
        raise UsageError(
            f"{session.account} is not the operator of this seat, {operators[-1]} is",
            f"use that key, or change the operator: `earnest seat operator {run} {session.account}`",
        )


def _register(
    session: Session, account: Account, run: int, held: SeatId, url: str | None, seat: SeatRecord | None
) -> None:
    """Registers the URL of this node's objects if the run has another one."""
    registered = None if seat is None else seat.uri
    if url is not None and url != registered:
        steps = uri_calls(session.contracts, run, held, url)
        transact(session, account, f"seat/{run}/uri/{url}", steps)
