"""`earnest trainer` and `earnest validator`: the nodes, from flags to the end of the run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from earnest.attestation.roots import SIMULATED_WARNING
from earnest.cli.app import make_group
from earnest.cli.commands.attest.keys import INTEL_PCS, Count, Kind, collateral_source, make_attester
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
    """Who makes a trainer's quotes (docs/attestation.md)."""

    attester: Annotated[Kind | None, Parameter(group=TEE)] = None
    """Register a key of this machine's TEE and sign with it: Linux in a TDX guest, dstack, or SIMULATED (NOT A TEE)."""

    collateral: Annotated[Path | None, Parameter(group=TEE)] = None
    """File with what Intel says of this machine (default: fetched and kept)."""

    pccs: Annotated[str, Parameter(group=TEE)] = INTEL_PCS
    """Where to fetch it: Intel's service, or a caching one."""

    socket: Annotated[Path | None, Parameter(group=TEE)] = None
    """The dstack agent's socket (default: where dstack puts it)."""

    code: Annotated[str, Parameter(group=TEE)] = ""
    """What a simulated machine measures."""

    platform: Annotated[Count, Parameter(group=TEE)] = 0
    """Number of the simulated machine."""


BARE = AttesterFlags()


@dataclass(frozen=True)
class AtWork:
    """An account about to work for a run: what a node is made from."""

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

    Killed at any moment, the same command goes on where it stopped: what it committed to is on disk.

    Example: earnest trainer start 1 --serve 0.0.0.0:9100 --public-url http://my.host:9100

    Parameters
    ----------
    run
        The run's number.
    owner
        The seat's owner, when this key is its operator (default: the key's own account).
    poll
        Seconds between two looks at the chain.
    patience
        Seconds that others get to settle first.
    private_data
        Your own data, for a run on private data: module:name of a `PrivateBatches`. It never leaves this machine.
    device
        What trains: cpu, cuda, cuda:1, mps; auto takes CUDA where there is one, else MPS, else the CPU.
    threads
        CPU threads of the training.
    micro_batch
        Samples in memory at a time; gradients add up to the same batch, but for rounding (0: the whole batch).
    compile
        Backend of torch.compile, such as inductor (default: not compiled).
    """
    if threads < 1 or micro_batch < 0:
        raise UsageError("--threads must be positive, --micro-batch not negative", "correct the numbers")
    if processes.layout and (micro_batch or compile):
        raise UsageError("--micro-batch and --compile are for one process", "write -mb4 in the --layout")
    ending = ExitStack()

    def make(at_work: AtWork) -> Node:
        from earnest.client.trainer.node import TrainerNode
        from earnest.training.diloco.engine import Machine  # torch: not for a command that is refused
        from earnest.training.tasks.own import load_private

        private = None if private_data is None else load_private(private_data)
        machine, parts = Machine(device, threads, micro_batch, compile), at_work.parts
        attested_rounds, several = _attested_rounds(at_work, tee), None
        if processes.layout:
            several = ending.enter_context(_several(processes, parts, machine))
        return TrainerNode(
            parts,
            at_work.files.task,
            patience=patience,
            private=private,
            machine=machine,
            trainer=several,
            attested_rounds=attested_rounds,
        )

    with ending:
        return _run_node(run, Role.TRAINER, owner, poll, patience, flags, make)


def _several(flags: LayoutFlags, parts: NodeParts, machine: Machine) -> ParallelTrainer:
    """The processes that the flags describe. Raises LayoutError, UsageError."""
    from earnest.training.parallel import Hosts, Layout, ParallelTrainer, Processes

    layout = Layout.parse(flags.layout or "")
    here = flags.processes_here or -(-layout.processes // flags.hosts)
    address, _, port = flags.meet.rpartition(":")
    if flags.hosts > 1 and not (address and port.isdecimal()):
        raise UsageError("several hosts need a place to meet", "give --meet HOST:PORT of this host")
    hosts = Hosts(flags.hosts, here, address, int(port)) if flags.hosts > 1 else Hosts(here=here)
    follower = parts.follower
    return ParallelTrainer(
        follower.recipe,
        follower.record.params.rounds,
        layout,
        Processes(hosts, flags.step_timeout),
        device=machine.device,
        threads=machine.threads,
    )


def _attested_rounds(at_work: AtWork, flags: AttesterFlags) -> AttestedRounds | None:
    """What attests for the trainer. Says loudly what a simulated attester is, and what a missing one costs.

    Raises UsageError for an attester in a run that takes no attestation.
    """
    from earnest.client.trainer.attested_rounds import AttestedRounds
    from earnest.client.trainer.enclave_keys import EnclaveKeys
    from earnest.protocol.run import Level

    session, parts, policy = at_work.session, at_work.parts, at_work.files.bundle.attestation
    record = parts.follower.record
    if flags.attester is None:
        if record.params.level == Level.ATTESTED:
            session.notice("this run counts attested updates only: without --attester there is no pay")
        return None
    if policy is None:
        raise UsageError(f"run {record.run} takes no attestation", "start the node without --attester")
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
    """Mirror, judge, report and settle for your validator seat, until the run is over or the node is stopped.

    Killed at any moment, the same command goes on where it stopped: a sealed report is on disk.

    Example: earnest validator start 1 --serve 0.0.0.0:9200 --public-url http://my.host:9200

    Parameters
    ----------
    run
        The run's number.
    owner
        The seat's owner, when this key is its operator (default: the key's own account).
    poll
        Seconds between two looks at the chain.
    patience
        Seconds that others get to settle first.
    """

    def make(at_work: AtWork) -> Node:
        from earnest.validator.node import ValidatorNode  # torch: not for a command that is refused

        return ValidatorNode(at_work.parts, at_work.files.task, patience=patience)

    return _run_node(run, Role.VALIDATOR, owner, poll, patience, flags, make)


def _run_node(
    run: int, role: Role, owner: str | None, poll: float, patience: int, flags: NodeFlags, make: Make
) -> Answer:
    if flags.dry_run:
        raise UsageError("a node cannot run dry", "check its setup with `earnest doctor RUN`")
    if poll <= 0 or patience < 0:
        raise UsageError("--poll must be positive, --patience not negative", "correct the numbers")
    with Session(flags) as session:
        consent(session, [])
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
            due = f"; round 0 starts in {countdown(left)}" if left > 0 else ""
            session.notice(f"{role.name.lower()} seat {held.seat} of run {run} at work for {address}{due}")
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
            shown.append(f"Of its working time it was idle for {document['time']['idle_share']:.1%}.")
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
    """The account's seat. Raises NoSeatError, which says how to get one, before anything is opened."""
    held = held_seat(session.contracts, run, account, session.at)
    if held.role is not role:
        other = held.role.name.lower()
        raise UsageError(
            f"{account} has a {other} seat in run {run}", f"start that node: `earnest {other} start {run}`"
        )
    return held


def _serve(session: Session, account: Account) -> str | None:
    """Starts to serve the public objects where the settings say so; the URL that others should use."""
    address = session.settings.serve_address
    served = None if address is None else account.serve(*address)
    given = session.settings.public_url
    if served is None and given is None:
        session.notice(
            "no --serve and no --public-url: nobody will be able to fetch what this node publishes"
        )
    return given.rstrip("/") if given else served


def _check_operator(session: Session, run: int, held: SeatId) -> None:
    """Raises UsageError for a key that is the seat's operator neither now nor from the next round on."""
    runs, at = session.contracts.runs, session.at
    following = runs.run_params(run, at=at).schedule().next_round(at.time)
    rounds = {max(0, following - 1), following}
    seats = [runs.seat_at(run, held.role, held.seat, round, at=at) for round in sorted(rounds)]
    operators = [seat.operator for seat in seats if seat.operator is not None]
    if operators and session.account not in operators:
        raise UsageError(
            f"{session.account} is not the operator of this seat, {operators[-1]} is",
            f"use that key, or change it: `earnest seat operator {run} {session.account}`",
        )


def _register(
    session: Session, account: Account, run: int, held: SeatId, url: str | None, seat: SeatRecord | None
) -> None:
    """Tells the run where this node's objects are, if it has been told otherwise."""
    registered = None if seat is None else seat.uri
    if url is not None and url != registered:
        steps = uri_calls(session.contracts, run, held, url)
        transact(session, account, f"seat/{run}/uri/{url}", steps)
