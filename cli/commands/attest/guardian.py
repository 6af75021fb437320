"""`earnest attest deny`, `raise-floor`, `revoke`: what a policy takes no more, and the end of keys that rest on it."""

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
    """Deny what keys rest on: for the guardian of the run's policy. It is FOR GOOD, and for all runs with the policy.

    The registry takes no key that rests on it any more, at once. From the second next round on no update is attested by
    such a key; `earnest attest revoke` also ends it on chain. `earnest attest show RUN --json` has the values.

    Example: earnest attest deny 1 --key 0x000000000000000000000000000000000000dEaD --dry-run

    Parameters
    ----------
    run
        The run's number; its files have the policy.
    workload
        A workload's id: that code. This and the next two are 64 hexadecimal digits.
    platform
        A platform's hash: that machine.
    pck
        Hash of a PCK key: that machine too, until Intel certifies another key for it.
    key
        An enclave key's address.
    root_id
        The id of the policy's root: all machines, so that the policy takes no key any more.
    """
    given: dict[Kind, str | None] = {
        "workload": workload,
        "platform": platform,
        "pck": pck,
        "key": key,
        "root-id": root_id,
    }
    chosen: list[tuple[Kind, str]] = [(kind, value) for kind, value in given.items() if value is not None]
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
        held = [one for keys in record.keys.values() for one in keys]
        steps = deny_calls(session.contracts.registry, policy, kind, entry, held, session.account, session.at)
        resting = [one for one in held if entry in one.rests_on]
        counting = [one for one in resting if _counts(session, record, one)]
        for line in _denial_lines(session, record, policy, kind, entry, resting, counting):
            session.notice(line)
        document = {
            "action": "deny",
            "run": run,
            "policy": policy.hash(),
            "what": kind,
            "entry": entry,
            "for_good": True,
            "keys": [{"trainer": one.trainer, "key": one.key} for one in counting],
            **_narrows(record, session.at.time),
        }
        label = f"attest/{run}/deny/{entry.hex()}"
        return send(
            session,
            label,
            steps,
            document,
            lambda told: (
                f"The {WORDS[kind]} is denied for good; it counts from round {told['from_round']} on."
            ),
            lambda receipts: _narrows(record, session.chain.block(receipts[-1].block_number).time),
        )


def raise_floor(run: RunNumber, number: Evaluation, /, *, flags: SendFlags = SEND) -> Answer:
    """Raise the lowest TCB evaluation number: for the guardian of the run's policy. It NEVER FALLS AGAIN.

    From the second next round on no update is attested by a key whose collateral has a lower number, in all runs with
    the policy. Intel publishes a higher one with each TCB recovery; trainers then register anew with new collateral.

    Example: earnest attest raise-floor 1 18

    Parameters
    ----------
    run
        The run's number; its files have the policy.
    number
        The new floor, above the one that `earnest attest show RUN` has.
    """
    with Session(flags) as session:
        record = session.deployment.read_run(run)
        policy_file = run_policy(record)
        steps = raise_floor_calls(
            session.contracts.registry, policy_file, number, session.account, session.at
        )
        narrows = _narrows(record, session.at.time)
        for line in (
            f"Raises the floor of policy 0x{policy_file.hash.hex()} to {number}, for good and in every run with it.",
            f"{_from(record, session.at.time)} no update is attested by a key whose collateral has a lower number;"
            " its trainer has to register anew before, with newer collateral.",
            f"Where Intel has published nothing of number {number} yet, no key counts until it does.",
        ):
            session.notice(line)
        document = {
            "action": "raise-floor",
            "run": run,
            "policy": policy_file.hash,
            "floor": number,
            "for_good": True,
            **narrows,
        }
        return send(
            session,
            f"attest/{run}/floor/{number}",
            steps,
            document,
            lambda told: f"The floor is {number} from round {told['from_round']} on.",
            lambda receipts: _narrows(record, session.chain.block(receipts[-1].block_number).time),
        )


def revoke(run: RunNumber, trainer: str, /, *, flags: SendFlags = SEND) -> Answer:
    """End a trainer's key that rests on what was denied, or whose bond outgrew what was counted. Anyone may.

    The key attests no round from the second next one on. Its trainer can register another, where the policy takes that.

    Example: earnest attest revoke 1 0x000000000000000000000000000000000000dEaD

    Parameters
    ----------
    run
        The run's number.
    trainer
        Address of the trainer whose newest key is to end.
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
        steps, ground = revoke_calls(session.contracts, run, policy, key, session.at)
        because = _because(session, key, ground)
        ends = session.contracts.runs.attestation(run, session.at).narrows_at
        session.notice(f"The key {key.key} of {owner} may be ended: {because}.")
        session.notice(f"{_from(record, session.at.time)} it attests no update any more.")
        document = {
            "action": "revoke",
            "run": run,
            "trainer": owner,
            "key": key.key,
            "what": ground.kind or "bond",
            "entry": ground.entry,
            "because": because,
            "ends": ends,
        }

        def found(receipts: Any) -> dict[str, Any]:
            mined = session.chain.block(receipts[-1].block_number)
            live = session.contracts.runs.enclave_key(run, owner, mined)
            return {"ends": ends if live is None else live.expiry}

        return send(
            session,
            f"attest/{run}/revoke/{owner}/{key.key}",
            steps,
            document,
            lambda told: f"The key {key.key} attests no round that opens at or after {when(told['ends'])}.",
            found,
        )


def run_policy(record: RunRecord) -> PolicyFile:
    """The run's policy, from its files. Raises UsageError for a run that takes no attestation."""
    from earnest.client.run.bundle import load_bundle
    from earnest.client.storage.objects import ObjectStore

    found = load_bundle(record.uri, record.params, ObjectStore("memory:///")).attestation
    if found is None:
        raise UsageError(f"run {record.run} takes no attestation", "join and train: its trainers need no TEE")
    return found


def hexadecimal(text: str, size: int, what: str) -> bytes:
    """`size` bytes of the command line. Raises UsageError."""
    try:
        found = bytes.fromhex(text.removeprefix("0x"))
    except ValueError as error:
        raise UsageError(f"{what} is not hexadecimal", f"give {2 * size} digits") from error
    if len(found) != size:
        raise UsageError(f"{what} has {len(found)} bytes", f"give {size}, {2 * size} digits")
    return found


# Showing


def objections(record: RunRecord, key: KeyRegistration) -> list[dict[str, Any]]:
    """What is denied of all that a key rests on: kind, entry, and the round from which that counts."""
    return [
        {"what": kind, "entry": entry, "from_round": record.denials[entry]}
        for kind, entry in entries(key).items()
        if entry in record.denials
    ]


def objection_line(key: dict[str, Any]) -> str | None:
    """What there is against a key of `attest show`, for people; None if nothing."""
    told = [
        f"its {_named(one['what'], one['entry'], key['key'])} is denied, from round {one['from_round']} on"
        for one in key["denied"]
    ]
    if key["revoked"] is not None:
        grew = "" if any(key["revoked_for"]) else ", for its trainer's bond grew beyond what was counted"
        told.append(f"revoked{grew}: it attests no round that opens at or after {when(key['revoked'])}")
    return f"{key['trainer']}, key {key['key']}: {'; '.join(told)}" if told else None


def narrowings(record: RunRecord, policy_file: PolicyFile | None, round: int) -> dict[str, Any]:
    """What the guardian has done to the run's policy: the floor in force in `round`, those to come, and the denied.

    The floor is None where the policy's file cannot be had and no floor was raised.
    """
    own, raised = 0 if policy_file is None else floor_of(policy_file), record.evaluation_floor(round)
    policy = None if policy_file is None else policy_file.policy
    keys = [one for held in record.keys.values() for one in held]
    return {
        "floor": None if policy_file is None and raised == 0 else max(own, raised),
        "floors_to_come": [
            {"floor": floor, "from_round": first}
            for floor, first in record.raised_floors.items()
            if first > round
        ],
        "denied": [
            {"what": kind_of(entry, keys, policy), "entry": entry, "from_round": first}
            for entry, first in record.denials.items()
        ],
    }


def narrowing_lines(narrowed: dict[str, Any]) -> list[str]:
    """The same for people."""
    floor = "unknown, for the policy's file cannot be had" if narrowed["floor"] is None else narrowed["floor"]
    coming = "".join(
        f"; from round {one['from_round']} on: {one['floor']}" for one in narrowed["floors_to_come"]
    )
    denied = [
        f"denied: {WORDS[one['what']] if one['what'] else 'entry'} 0x{one['entry'].hex()},"
        f" from round {one['from_round']} on"
        for one in narrowed["denied"]
    ]
    return [f"lowest TCB evaluation number: {floor}{coming}", *denied]


# Explaining


def _entry(session: Session, kind: Kind, value: str) -> bytes:
    if kind == "key":
        return key_entry(session.address(value))
    return hexadecimal(value, ENTRY_BYTES, f"--{kind}")


def _counts(session: Session, record: RunRecord, key: KeyRegistration) -> bool:
    return key is record.newest_key(key.trainer) and session.at.time < key.ends


def _narrows(record: RunRecord, time: int) -> dict[str, int]:
    """When a narrowing that is mined at `time` counts: the first round, and when that opens."""
    schedule = record.params.schedule()
    first = schedule.next_round(time) + 1
    return {"from_round": first, "from_time": schedule.opens(first)}


def _from(record: RunRecord, time: int) -> str:
    """The same in words, at the beginning of a sentence."""
    counts = _narrows(record, time)
    over = ", by when the run is over," if counts["from_round"] >= record.planned_rounds else ""
    return f"From round {counts['from_round']} of run {record.run} on ({when(counts['from_time'])}){over}"


def _denial_lines(
    session: Session,
    record: RunRecord,
    policy: Policy,
    kind: Kind,
    entry: bytes,
    resting: list[KeyRegistration],
    counting: list[KeyRegistration],
) -> list[str]:
    all_gone = kind == "root-id" or (kind == "workload" and len(policy.workloads) == 1)
    return [
        f"Denies the {WORDS[kind]} 0x{entry.hex()} under policy 0x{policy.hash().hex()}: FOR GOOD, nobody can take"
        " that back, and in every run with this policy.",
        "The registry takes no key that rests on it any more, at once."
        + (" That is every key: the policy then takes none." if all_gone else ""),
        f"{_from(record, session.at.time)} no update is attested by a key that rests on it.",
        *(f"It ends the key {one.key} of {one.trainer}." for one in counting),
        *([] if resting else ["No key of this run rests on it: look whether the value is right."]),
    ]


def _because(session: Session, key: KeyRegistration, ground: RevocationReason) -> str:
    if ground.kind is None:
        grown, counted = session.tokens(ground.live_bond), session.tokens(ground.counted)
        return f"its trainer's bond grew to {grown}, and {counted} are counted for its platform"
    return f"its {_named(ground.kind, ground.entry or b'', key.key)} is denied"


def _named(kind: Kind, entry: bytes, key: str) -> str:
    """What a key rests on, in words; a key itself by its address."""
    return f"{WORDS[kind]} {key if kind == 'key' else '0x' + entry.hex()}"
