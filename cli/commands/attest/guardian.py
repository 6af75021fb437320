"""`earnest attest deny`, `raise-floor`, `revoke`: narrows a policy, and ends keys that it no longer accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from earnest.attestation.policy_file import PolicyFile
from earnest.cli.exits import UsageError
from earnest.cli.flags import RunNumber, SendFlags
from earnest.cli.output import Answer, when
from earnest.cli.session import Session
from earnest.cli.transactions import send
from earnest.client.account.policy_transactions import (
    WORDS,
    Kind,
    NarrowingError,
    RevocationReason,
    deny_calls,
    entries,
    floor_of,
    kind_of,
    raise_floor_calls,
    revoke_calls,
)
from earnest.protocol.attestation import key_entry

if TYPE_CHECKING:
    from earnest.client.run.record import KeyRegistration, RunRecord
    from earnest.protocol.attestation import Policy

SEND = SendFlags()
ENTRY_BYTES = 32
Evaluation = Annotated[int, Parameter(validator=Number(gte=1, lt=1 << 32))]


def deny(
    run: RunNumber,
    /,
    *,
    workload: str | None = None,
    platform: str | None = None,
    pck: str | None = None,
    key: str | None = None,
    root_id: str | None = None,
    flags: SendFlags = SEND,
) -> Answer:
    """Deny a workload, machine, key or root. Only for the policy's guardian. PERMANENT, in all runs with the policy.

    The registry refuses new keys that depend on it at once. From the round after the next one, existing keys that
    depend on it attest no updates; `earnest attest revoke` also ends them on chain. The values are in
    `earnest attest show RUN --json`.

    Example: earnest attest deny 1 --key 0x000000000000000000000000000000000000dEaD --dry-run

    Parameters
    ----------
    run
        The run's number; its files have the policy.
    workload
        Workload id: denies that code. This and the next two are 64 hexadecimal digits.
    platform
        Hash of a platform: denies that machine.
    pck
        Hash of a PCK key: denies that machine until Intel certifies another key for it.
    key
        Address of an enclave key.
    root_id
        Id of the policy's root: denies all machines, so the policy accepts no key any more.
    """
    values: dict[Kind, str | None] = {
        "workload": workload,
        "platform": platform,
        "pck": pck,
        "key": key,
        "root-id": root_id,
    }
    chosen: list[tuple[Kind, str]] = [(kind, value) for kind, value in values.items() if value is not None]
    if len(chosen) != 1:
        raise UsageError(
            f"{len(chosen)} values are given to deny",
            "give exactly one of --workload, --platform, --pck, --key and --root-id",
        )
    ((kind, value),) = chosen
    with Session(flags) as session:
        entry = _entry(session, kind, value)
        record = session.deployment.read_run(run)
        policy = run_policy(record).policy
        registered = [key for keys in record.keys.values() for key in keys]
        steps = deny_calls(
            session.contracts.registry, policy, kind, entry, registered, session.account, session.at
        )
        dependent = [key for key in registered if entry in key.depends_on]
        live = [key for key in dependent if _is_live(session, record, key)]
        for line in _denial_lines(session, record, policy, kind, entry, dependent, live):
            session.notice(line)
        document = {
            "action": "deny",
            "run": run,
            "policy": policy.hash(),
            "what": kind,
            "entry": entry,
            "for_good": True,
            "keys": [{"trainer": key.trainer, "key": key.key} for key in live],
            **_effective(record, session.at.time),
        }
        label = f"attest/{run}/deny/{entry.hex()}"
        return send(
            session,
            label,
            steps,
            document,
            lambda fields: (
                f"The {WORDS[kind]} is denied permanently, with effect from round {fields['from_round']}."
            ),
            lambda receipts: _effective(record, session.chain.block(receipts[-1].block_number).time),
        )


def raise_floor(run: RunNumber, number: Evaluation, /, *, flags: SendFlags = SEND) -> Answer:
    """Raise the lowest accepted TCB evaluation number. Only for the policy's guardian. It can NEVER be lowered again.

    From the round after the next one, keys whose collateral has a lower number attest no updates, in all runs with the
    policy. Intel publishes a higher number with each TCB recovery; trainers then register again with new collateral.

    Example: earnest attest raise-floor 1 18

    Parameters
    ----------
    run
        The run's number; its files have the policy.
    number
        The new floor, higher than the one that `earnest attest show RUN` prints.
    """
    with Session(flags) as session:
        record = session.deployment.read_run(run)
        policy_file = run_policy(record)
        steps = raise_floor_calls(
            session.contracts.registry, policy_file, number, session.account, session.at
        )
        effect = _effective(record, session.at.time)
        for line in (
            f"Raises the floor of policy 0x{policy_file.hash.hex()} to {number}, permanently and in every run with it.",
            f"{_from(record, session.at.time)} keys whose collateral has a lower number attest no updates;"
            " their trainers must register again before, with newer collateral.",
            f"If Intel has not published number {number} yet, no key is valid until it does.",
        ):
            session.notice(line)
        document = {
            "action": "raise-floor",
            "run": run,
            "policy": policy_file.hash,
            "floor": number,
            "for_good": True,
            **effect,
        }
        return send(
            session,
            f"attest/{run}/floor/{number}",
            steps,
            document,
            lambda fields: f"The floor is {number} from round {fields['from_round']}.",
            lambda receipts: _effective(record, session.chain.block(receipts[-1].block_number).time),
        )


def revoke(run: RunNumber, trainer: str, /, *, flags: SendFlags = SEND) -> Answer:
    """End a trainer's key that depends on a denied entry, or whose bond grew beyond the policy's limit. For anyone.

    From the round after the next one, the key attests no updates. Its trainer can register another that the policy
    accepts.

    Example: earnest attest revoke 1 0x000000000000000000000000000000000000dEaD

    Parameters
    ----------
    run
        The run's number.
    trainer
        Address of the trainer whose newest key to end.
    """
    with Session(flags) as session:
        owner = session.address(trainer)
        record = session.deployment.read_run(run)
        policy = run_policy(record).policy
        key = record.newest_key(owner)
        if key is None:
            raise NarrowingError(
                f"{owner} registered no key in run {run}", f"list them: `earnest attest show {run}`"
            )
        steps, reason = revoke_calls(session.contracts, run, policy, key, session.at)
        because = _because(session, key, reason)
        ends = session.contracts.runs.attestation(run, session.at).narrows_at
        session.notice(f"The key {key.key} of {owner} can be ended: {because}.")
        session.notice(f"{_from(record, session.at.time)} it attests no updates.")
        document = {
            "action": "revoke",
            "run": run,
            "trainer": owner,
            "key": key.key,
            "what": reason.kind or "bond",
            "entry": reason.entry,
            "because": because,
            "ends": ends,
        }

        def effect(receipts: Any) -> dict[str, Any]:
            mined = session.chain.block(receipts[-1].block_number)
            live = session.contracts.runs.enclave_key(run, owner, mined)
            return {"ends": ends if live is None else live.expiry}

        return send(
            session,
            f"attest/{run}/revoke/{owner}/{key.key}",
            steps,
            document,
            lambda fields: (
                f"The key {key.key} attests no round that opens at or after {when(fields['ends'])}."
            ),
            effect,
        )


def run_policy(record: RunRecord) -> PolicyFile:
    """Reads the policy from the run's files. Raises UsageError for a run without attestation."""
    from earnest.client.run.bundle import load_bundle
    from earnest.client.storage.objects import ObjectStore

    policy_file = load_bundle(record.uri, record.params, ObjectStore("memory:///")).attestation
    if policy_file is None:
        raise UsageError(f"run {record.run} has no attestation", "join and train: its trainers need no TEE")
    return policy_file


def hexadecimal(text: str, size: int, flag: str) -> bytes:
    """Parses `size` bytes given as hexadecimal. Raises UsageError."""
    try:
        value = bytes.fromhex(text.removeprefix("0x"))
    except ValueError as error:
        raise UsageError(f"{flag} is not hexadecimal", f"give {2 * size} digits") from error
    if len(value) != size:
        raise UsageError(f"{flag} has {len(value)} bytes", f"give {size}, {2 * size} digits")
    return value


# Showing


def objections(record: RunRecord, key: KeyRegistration) -> list[dict[str, Any]]:
    """Returns the denied entries that a key depends on: kind, entry, and the round from which the denial counts."""
    return [
        {"what": kind, "entry": entry, "from_round": record.denials[entry]}
        for kind, entry in entries(key).items()
        if entry in record.denials
    ]


def objection_line(key: dict[str, Any]) -> str | None:
    """Returns the reason that a key of `attest show` no longer counts, as text; None if it counts."""
    reasons = [
        f"its {_named(denial['what'], denial['entry'], key['key'])} is denied from round {denial['from_round']}"
        for denial in key["denied"]
    ]
    if key["revoked"] is not None:
        grew = "" if any(key["revoked_for"]) else " because its trainer's bond grew beyond the counted one"
        reasons.append(f"revoked{grew}: it attests no round that opens at or after {when(key['revoked'])}")
    return f"{key['trainer']}, key {key['key']}: {'; '.join(reasons)}" if reasons else None


def narrowings(record: RunRecord, policy_file: PolicyFile | None, round: int) -> dict[str, Any]:
    """Returns the guardian's changes to the policy: the floor in force in `round`, later floors, denied entries.

    The floor is None if the policy's file is not available and no floor was raised.
    """
    own = 0 if policy_file is None else floor_of(policy_file)
    raised = record.evaluation_floor(round)
    policy = None if policy_file is None else policy_file.policy
    registered = [key for keys in record.keys.values() for key in keys]
    return {
        "floor": None if policy_file is None and raised == 0 else max(own, raised),
        "floors_to_come": [
            {"floor": floor, "from_round": first}
            for floor, first in record.raised_floors.items()
            if first > round
        ],
        "denied": [
            {"what": kind_of(entry, registered, policy), "entry": entry, "from_round": first}
            for entry, first in record.denials.items()
        ],
    }


def narrowing_lines(narrowed: dict[str, Any]) -> list[str]:
    """Formats `narrowings` for people."""
    floor = "unknown: the policy's file is not available" if narrowed["floor"] is None else narrowed["floor"]
    coming = "".join(
        f"; from round {later['from_round']}: {later['floor']}" for later in narrowed["floors_to_come"]
    )
    denied = [
        f"denied: {WORDS[denial['what']] if denial['what'] else 'entry'} 0x{denial['entry'].hex()},"
        f" from round {denial['from_round']}"
        for denial in narrowed["denied"]
    ]
    return [f"lowest TCB evaluation number: {floor}{coming}", *denied]


# Explaining


def _entry(session: Session, kind: Kind, value: str) -> bytes:
    if kind == "key":
        return key_entry(session.address(value))
    return hexadecimal(value, ENTRY_BYTES, f"--{kind}")


def _is_live(session: Session, record: RunRecord, key: KeyRegistration) -> bool:
    return key is record.newest_key(key.trainer) and session.at.time < key.ends


def _effective(record: RunRecord, time: int) -> dict[str, int]:
    """Returns the first round in which a narrowing mined at `time` takes effect, and when it opens."""
    schedule = record.params.schedule()
    first = schedule.next_round(time) + 1
    return {"from_round": first, "from_time": schedule.opens(first)}


def _from(record: RunRecord, time: int) -> str:
    """Returns round and time from which a narrowing counts, as text for the start of a sentence."""
    effect = _effective(record, time)
    over = ", when the run is over," if effect["from_round"] >= record.planned_rounds else ""
    return f"From round {effect['from_round']} of run {record.run} ({when(effect['from_time'])}){over}"


def _denial_lines(
    session: Session,
    record: RunRecord,
    policy: Policy,
    kind: Kind,
    entry: bytes,
    dependent: list[KeyRegistration],
    live: list[KeyRegistration],
) -> list[str]:
    accepts_none = kind == "root-id" or (kind == "workload" and len(policy.workloads) == 1)
    return [
        f"Denies the {WORDS[kind]} 0x{entry.hex()} under policy 0x{policy.hash().hex()}: PERMANENTLY, and in every"
        " run with this policy. Nobody can undo it.",
        "The registry refuses new keys that depend on it at once."
        + (" That is every key: the policy then accepts none." if accepts_none else ""),
        f"{_from(record, session.at.time)} keys that depend on it attest no updates.",
        *(f"It ends the key {key.key} of {key.trainer}." for key in live),
        *([] if dependent else ["No key of this run depends on it: check the value."]),
    ]


def _because(session: Session, key: KeyRegistration, reason: RevocationReason) -> str:
    if reason.kind is None:
        grown, counted = session.tokens(reason.live_bond), session.tokens(reason.counted)
        return f"its trainer's bond grew to {grown}, and {counted} are counted for its platform"
    return f"its {_named(reason.kind, reason.entry or b'', key.key)} is denied"


def _named(kind: Kind, entry: bytes, key: str) -> str:
    """Returns a deny-list entry as text; a key by its address."""
    return f"{WORDS[kind]} {key if kind == 'key' else '0x' + entry.hex()}"
