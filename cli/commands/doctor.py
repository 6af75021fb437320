"""`earnest doctor`: checks that a node can work here. It changes nothing and sends nothing."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from earnest.base.errors import EarnestError, JournalLocked, KeystoreError
from earnest.cli.exits import Exit
from earnest.cli.flags import RunNumber, ServeFlags
from earnest.cli.output import Answer, table
from earnest.cli.session import Session, coins

SERVE = ServeFlags()
MIN_DISK_BYTES = 1 << 30
MAX_SKEW_S = 120.0
NEED_KEY = frozenset({"balance", "journal", "seat"})
"""Checks that are skipped without a key: the check of the key file reports it once."""


@dataclass(frozen=True)
class DoctorCheck:
    """One check: its name, whether it passed, what was found, and what to do if it failed."""

    name: str
    ok: bool
    found: str
    fix: str = ""


Question = Callable[[Session], Iterator[DoctorCheck]]


def doctor(run: RunNumber | None = None, /, *, offline: bool = False, flags: ServeFlags = SERVE) -> Answer:
    """Check this machine, the chain, the deployment and, if one is named, a run. Exit code 1 if any check fails.

    Example: earnest doctor 1

    Parameters
    ----------
    run
        The run's number, to also check its files and your seat.
    offline
        Skip all checks that need the network.
    """
    with Session(replace(flags, dry_run=True)) as session:
        questions: list[tuple[str, Question]] = [
            ("disk", _disk),
            ("torch", _torch),
            ("key file", _keystore),
            ("port", _port),
        ]
        if not offline:
            questions += [("endpoint", _endpoints), ("clock", _clock), ("deployment", _deployment)]
            questions += [("balance", _balance), ("journal", _journal)]
        if not offline and run is not None:
            questions += [("run", lambda s: _run_files(s, run)), ("seat", lambda s: _seat(s, run))]
        checks: list[DoctorCheck] = []
        for name, question in questions:
            keyless = any(check.name == "key file" and not check.ok for check in checks)
            if not (keyless and name in NEED_KEY):
                checks += _run_check(session, name, question)
    failed = [check for check in checks if not check.ok]
    rows = [("pass" if c.ok else "FAIL", c.name, c.found, "" if c.ok else c.fix) for c in checks]
    document = {"ok": not failed, "checks": [asdict(check) for check in checks]}
    summary = "All checks passed." if not failed else f"{len(failed)} of {len(checks)} checks failed."
    shown = [table("Doctor", ("", "check", "found", "what to do"), rows), summary]
    return Answer(document, shown, Exit.REFUSED if failed else Exit.OK)


def _run_check(session: Session, name: str, question: Question) -> list[DoctorCheck]:
    """Returns the results of one check; an error is a failed check of this name."""
    checks: list[DoctorCheck] = []
    try:
        checks.extend(question(session))
    except EarnestError as error:
        checks.append(DoctorCheck(name, False, error.cause, error.fix))
    return checks


# This machine


def _disk(session: Session) -> Iterator[DoctorCheck]:
    folder = next(
        p
        for p in (session.settings.data_dir.absolute(), *session.settings.data_dir.absolute().parents)
        if p.exists()
    )
    free = shutil.disk_usage(folder).free
    found = f"{free / (1 << 30):.1f} GiB free at {folder}"
    yield DoctorCheck(
        "disk", free >= MIN_DISK_BYTES, found, "free disk space up to 1 GiB, or choose another --data-dir"
    )
    yield DoctorCheck(
        "data folder", os.access(folder, os.W_OK), str(session.settings.data_dir), "make the folder writable"
    )


def _torch(session: Session) -> Iterator[DoctorCheck]:
    import torch

    wanted = next(r.partition("==")[2] for r in requires("earnest") or [] if r.startswith("torch=="))
    version = torch.__version__.partition("+")[0]
    yield DoctorCheck("torch version", version == wanted, torch.__version__, f"install torch=={wanted}")
    with torch.random.fork_rng(devices=[]):
        runs = []
        for _ in range(2):
            torch.manual_seed(1)
            runs.append(torch.nn.functional.linear(torch.randn(64, 64), torch.randn(64, 64)))
    found = "two runs agree" if torch.equal(*runs) else "two runs differ"
    yield DoctorCheck(
        "torch determinism", torch.equal(*runs), found, "install the versions of requirements.lock"
    )


def _keystore(session: Session) -> Iterator[DoctorCheck]:
    yield DoctorCheck("key file", True, f"{session.account} in {session.keystore}")
    mode = session.keystore.stat().st_mode & 0o777
    yield DoctorCheck("key file rights", mode & 0o077 == 0, oct(mode), f"chmod 600 {session.keystore}")


def _port(session: Session) -> Iterator[DoctorCheck]:
    address = session.settings.serve_address
    if address is None:
        return
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            yield DoctorCheck(
                "port",
                False,
                f"{session.settings.serve}: {error.strerror}",
                "choose another --serve HOST:PORT",
            )
        else:
            yield DoctorCheck("port", True, f"{session.settings.serve} is free")


# The chain


def _endpoints(session: Session) -> Iterator[DoctorCheck]:
    for name, error in session.chain.check().items():
        if error is None:
            yield DoctorCheck("endpoint", True, f"{name} serves chain {session.network.chain_id}")
        else:
            yield DoctorCheck("endpoint", False, error.cause, error.fix)


def _clock(session: Session) -> Iterator[DoctorCheck]:
    skew = session.environment.clock() - session.at.time
    limit = max(MAX_SKEW_S, 10 * session.network.block_time_s)
    found = f"the newest block is {skew:.0f} s old"
    fix = "set this machine's clock (NTP), or use an endpoint that is synchronised"
    yield DoctorCheck("clock", session.network.local or abs(skew) <= limit, found, fix)


def _deployment(session: Session) -> Iterator[DoctorCheck]:
    from earnest.deploy.verify import verify

    checks = verify(session.manifest, session.chain, session.at)
    wrong = [f"{c.contract}: {c.name}" for c in checks if not c.ok]
    found = "; ".join(wrong) or f"{len(checks)} of {len(checks)} checks pass"
    yield DoctorCheck(
        "deployment",
        not wrong,
        found,
        "use the manifest of this deployment; details: `earnest deploy verify`",
    )
    session.deployment  # noqa: B018  (raises if the contracts speak another protocol version)
    yield DoctorCheck("P-256", True, _p256(session)[1])


def _p256(session: Session) -> tuple[bool, str]:
    """Returns True if the chain has the precompile that enclave keys need, and the same as text."""
    from earnest.deploy.probe import P256_PRECOMPILE, has_p256

    if has_p256(session.chain, session.at):
        return True, f"the precompile at {P256_PRECOMPILE} works: attested runs are possible"
    return False, "no precompile: enclave keys cannot be registered here, everything else works"


def _balance(session: Session) -> Iterator[DoctorCheck]:
    balance = session.chain.balance(session.account, session.at)
    found = f"{coins(balance)} for gas"
    yield DoctorCheck("balance", balance > 0, found, f"send coins of the chain to {session.account}")
    contracts = session.contracts
    tokens = contracts.token.balance_of(session.account, at=session.at)
    idle = contracts.vault.idle(session.account, at=session.at)
    yield DoctorCheck(
        "tokens", True, f"{session.tokens(tokens)} in the account, {session.tokens(idle)} idle in the vault"
    )


def _journal(session: Session) -> Iterator[DoctorCheck]:
    from earnest.client.storage.journal import Journal

    path = session.folder(session.account) / "journal.sqlite"
    if not path.exists():
        yield DoctorCheck("journal", True, "none yet")
        return
    try:
        with Journal(path, session.account, session.deployment.name) as journal:
            waiting = len(journal.open_intents())
    except JournalLocked:
        yield DoctorCheck("journal", True, f"{path} is in use by a node")
    else:
        yield DoctorCheck("journal", True, f"{path} is intact, {waiting} transactions are not final yet")


# A run


def _run_files(session: Session, run: int) -> Iterator[DoctorCheck]:
    from earnest.client.run.bundle import load
    from earnest.client.storage.objects import ObjectStore

    record = session.deployment.read_run(run)
    if record.params.level.uses_attestation:
        able, found = _p256(session)
        yield DoctorCheck("attestation", able, found, "join runs with verification = incentive on this chain")
    try:
        folder: Path | None = session.public_folder
    except KeystoreError:
        folder = None
    store = ObjectStore(folder) if folder is not None and folder.exists() else ObjectStore("memory:///")
    files = load(record.uri, record.params, store)
    yield DoctorCheck("recipe", True, f"its hash {files.bundle.recipe.hash().hex()} is the run's")
    yield DoctorCheck("task", True, f"{files.bundle.recipe.task} loads, {files.task.pool_size} samples")


def _seat(session: Session, run: int) -> Iterator[DoctorCheck]:
    from earnest.client.account.transactions import held_seat

    held: Any = held_seat(session.contracts, run, session.account, session.at)
    yield DoctorCheck("seat", True, f"{held.role.name.lower()} seat {held.seat} of run {run}")
