"""`earnest attest register` and `show`: registers an enclave key for a seat of a run, lists registered keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from earnest.attestation.policy_file import PolicyFile
from earnest.attestation.roots import SIMULATED_WARNING, root_name
from earnest.cli.commands.attest.guardian import (
    narrowing_lines,
    narrowings,
    objection_line,
    objections,
    run_policy,
)
from earnest.cli.commands.run_show import attestation_document, policy_of
from earnest.cli.files import read_file
from earnest.cli.flags import ChainFlags, RunNumber, SendFlags
from earnest.cli.output import Answer, block, progress, when
from earnest.cli.session import Session
from earnest.cli.transactions import Sent, approve, mined, report
from earnest.client.account.sending import UnfinishedError
from earnest.client.account.transactions import PlannedCall

if TYPE_CHECKING:
    from earnest.attestation.prover.attester import Attester
    from earnest.client.run.record import KeyRegistration, RunRecord

CHAIN, SEND = ChainFlags(), SendFlags()

AttesterKind = Literal["simulated", "tdx-guest", "dstack"]
Count = Annotated[int, Parameter(validator=Number(gte=0, lt=1 << 32))]
INTEL_PCS = "https://api.trustedservices.intel.com"


def register(
    run: RunNumber,
    /,
    *,
    attester: AttesterKind,
    owner: str | None = None,
    collateral: Path | None = None,
    pccs: str = INTEL_PCS,
    socket: Path | None = None,
    code: str = "",
    platform: Count = 0,
    again: bool = False,
    flags: SendFlags = SEND,
) -> Answer:
    """Register a key made inside this machine's TEE: makes key and quote, publishes the evidence file, sends it.

    The evidence file is one of the account's public objects, which the trainer node serves. A node started with an
    attester does all this by itself, and again before the key expires.

    Example: earnest attest register 1 --attester tdx-guest

    Parameters
    ----------
    run
        The run's number.
    attester
        Source of the quote: Linux inside a TDX guest, dstack's guest agent, or software (SIMULATED, NOT A TEE).
    owner
        The seat's owner, when this key is its operator (default: the key's own account).
    collateral
        File with Intel's collateral for this machine (default: fetched from --pccs and cached).
    pccs
        URL of the collateral service: Intel's, or a caching one.
    socket
        Path of the dstack agent's socket (default: the usual ones).
    code
        Code that a simulated machine measures, as text.
    platform
        Number of the simulated machine.
    again
        Register another key although this machine's key is not due for renewal.
    """
    with Session(flags) as session:
        trainer = session.address(owner)
        policy_file = run_policy(session.deployment.read_run(run))
        machine = make_attester(session, attester, socket, code, platform)
        if attester == "simulated":
            session.notice(SIMULATED_WARNING)
        document = {
            "action": "register",
            "run": run,
            "trainer": trainer,
            "attester": machine.kind,
            "root": root_name(machine.root_id),
            "root_id": machine.root_id,
        }
        fetch_collateral = collateral_source(session, collateral, pccs)
        if session.flags.dry_run:
            return _would_register(session, run, trainer, machine, policy_file, fetch_collateral, document)
        return _register(session, run, trainer, machine, policy_file, fetch_collateral, document, again=again)


def show(run: RunNumber, /, *, account: str | None = None, flags: ChainFlags = CHAIN) -> Answer:
    """Show the keys registered in a run: trainer, workload, root, expiry.

    Also shows the entries that the policy's guardian denied, the keys that this ends, and the TCB evaluation floor.

    Example: earnest attest show 1

    Parameters
    ----------
    run
        The run's number.
    account
        Show only the keys of this trainer.
    """
    with Session(flags) as session:
        record = session.deployment.read_run(run)
        now = session.chain.final().time
        wanted = None if account is None else session.address(account)
        policy_file = policy_of(record)
        round = record.params.schedule().round_at(now)
        keys = [
            _key_document(record, key, newest=key is registered[-1], now=now)
            for trainer, registered in sorted(record.keys.items())
            for key in registered
            if wanted in (None, trainer)
        ]
        attestation = attestation_document(record, policy_file)
        narrowed = narrowings(record, policy_file, round)
    document = {"run": run, "attestation": attestation, **narrowed, "keys": keys}
    roots = [f"root 0x{root.hex()}: {root_name(root)}" for root in dict.fromkeys(k["root_id"] for k in keys)]
    shown = [*(line for key in keys for line in _key_lines(key)), *roots] if keys else ["No keys yet."]
    against = [line for key in keys if (line := objection_line(key)) is not None]
    return Answer(document, [*shown, *against, *(narrowing_lines(narrowed) if attestation else [])])


def _key_document(record: RunRecord, key: KeyRegistration, *, newest: bool, now: int) -> dict[str, Any]:
    denied = objections(record, key)
    round = record.params.schedule().round_at(now)
    refused = any(denial["from_round"] <= round for denial in denied)
    live = newest and now < key.ends and not refused
    ended = "replaced" if not newest else "revoked" if key.revoked is not None else "expired"
    return {
        **asdict(key),
        "root": root_name(key.root_id),
        "ends": key.ends,
        "live": live,
        "denied": denied,
        "until": when(key.ends) if live else "denied" if newest and refused else ended,
    }


def _key_lines(key: dict[str, Any]) -> list[str]:
    return block(
        f"Key {key['key']}",
        [
            ("trainer", key["trainer"]),
            ("workload", f"0x{key['workload'].hex()}"),
            ("root", key["root"]),
            ("valid until", key["until"]),
            ("evidence file", key["evidence_root"].hex()),
        ],
    )


def _register(
    session: Session,
    run: int,
    trainer: str,
    machine: Attester,
    policy_file: PolicyFile,
    fetch_collateral: Callable[[bytes], bytes],
    document: dict[str, Any],
    *,
    again: bool,
) -> Answer:
    from earnest.client.account.sending import finish_earlier
    from earnest.client.trainer.enclave_keys import REGISTER_STEP, EnclaveKeys

    account = session.open_account(trainer)
    keys = EnclaveKeys.of(
        account, run, machine, policy_file, session.environment.random, collateral=fetch_collateral
    )
    before = keys.live(session.chain.head())
    finish_earlier(account)
    head = session.chain.head()
    sent: list[Sent] = []
    if keys.live(head) == before:  # otherwise the registration of an interrupted command is mined by now
        if before is not None and not again and not keys.due(head) and not _is_denied(session, run, trainer):
            until = f"{before.address} is valid until {when(before.expiry)}"
            line = f"Nothing to do: this machine's key {until}. For another one: --again"
            return report(session, {**document, "key": before.address, "expiry": before.expiry}, [], [line])
        name, call = keys.next_call(head)
        step = PlannedCall(REGISTER_STEP, "register the enclave's key", call)
        approve(session, [step], document)
        session.notice(f"{step.purpose} ...")
        receipt = keys.send(name, call, head)
        if receipt is None:
            raise UnfinishedError("the registration is sent, but not mined yet", "run the same command again")
        sent.append(mined(session, step, receipt))
    live = keys.live(session.chain.head())
    document = {**document, "key": live and live.address, "expiry": live and live.expiry}
    line = (
        "There is no key." if live is None else f"The key {live.address} is valid until {when(live.expiry)}."
    )
    return report(session, document, sent, [line])


def _is_denied(session: Session, run: int, trainer: str) -> bool:
    """Returns True if the trainer's newest key depends on an entry that the policy's guardian denied."""
    record = session.deployment.read_run(run)
    key = record.newest_key(trainer)
    return key is not None and not key.depends_on.isdisjoint(record.denied)


def _would_register(
    session: Session,
    run: int,
    trainer: str,
    machine: Attester,
    policy_file: PolicyFile,
    fetch_collateral: Callable[[bytes], bytes],
    document: dict[str, Any],
) -> Answer:
    """Answers --dry-run, with a throw-away key, so that nothing is written."""
    from earnest.attestation.prover.enclave_key import EnclaveKey
    from earnest.attestation.prover.key_registration import KeyScope, prepare_registration
    from earnest.client.trainer.enclave_keys import REGISTER_STEP

    registry = session.contracts.registry
    key = EnclaveKey.make(session.environment.random).address
    scope = KeyScope(session.chain.chain_id, registry.address, run, trainer)
    challenge = registry.challenge(run, trainer, session.at)
    prepared = prepare_registration(machine, key, scope, challenge, policy_file, collateral=fetch_collateral)
    call = registry.register(prepared.registration, policy_file.policy, prepared.parts)
    step = PlannedCall(REGISTER_STEP, "register the enclave's key", call)
    answer = approve(session, [step], {**document, "workload": prepared.quote.workload()})
    assert answer is not None  # with --dry-run there is one
    return answer


def make_attester(
    session: Session, kind: AttesterKind, socket: Path | None, code: str, platform: int
) -> Attester:
    """Returns the attester that the flags name; sends no request to it yet."""
    if kind == "simulated":
        from earnest.attestation.prover.simulated import SimulatedAttester

        return SimulatedAttester(code=code.encode(), platform=platform)
    if kind == "dstack":
        from earnest.attestation.prover.dstack import DstackAttester

        return DstackAttester(socket)
    from earnest.attestation.prover.tdx_guest import TdxGuestAttester

    return TdxGuestAttester(session.environment.random)


def collateral_source(session: Session, file: Path | None, url: str) -> Callable[[bytes], bytes]:
    """Returns a function that gives a quote's collateral: from the file, or from the service and its cache on disk."""
    if file is not None:
        content = read_file(file)
        return lambda quote: content

    def fetch(quote: bytes) -> bytes:
        from earnest.attestation.collateral_cache import CollateralCache, pccs

        cache = CollateralCache(session.settings.data_dir / "collateral", pccs(url))
        with progress(session.environment.stderr, f"fetching collateral from {url}"):
            return asyncio.run(cache.collateral(quote, int(session.environment.clock()))).data

    return fetch
