"""`earnest run show`: a run's terms, open windows, seats and rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from earnest.base.amounts import brief
from earnest.base.errors import StorageError
from earnest.cli.output import Answer, countdown, table, when
from earnest.cli.session import Session
from earnest.client.run.outcome import TEXTS, VOID
from earnest.client.run.phases import Phase, next_phase, open_phases, run_state
from earnest.client.run.record import RunRecord
from earnest.client.run.run_file import LEVELS
from earnest.protocol.constants import MAX_ROUNDS, WEIGHT_ONE
from earnest.protocol.run import Level, Role
from earnest.protocol.verdicts import Verdict

if TYPE_CHECKING:
    from earnest.attestation.policy_file import PolicyFile

LEVEL_NAMES = {level: name for name, level in LEVELS.items()}
FAULTS = ("unrevealed", "malformed", "copied", "harmful", "unfaithful")


def run_answer(session: Session, record: RunRecord) -> Answer:
    """Shows one run at the newest final block."""
    at = session.chain.final()
    schedule, planned = record.params.schedule(), record.planned_rounds
    phases = open_phases(schedule, planned, at.time)
    upcoming = next_phase(schedule, planned, at.time)
    settlement, vault = session.contracts.settlement, session.contracts.vault
    escrow = vault.escrow(settlement.address, record.run, at=at)
    attestation = attestation_document(record, policy_of(record))
    document = {
        "run": record.run,
        "state": run_state(schedule, planned, at.time),
        "block": at.number,
        "time": at.time,
        "round": min(schedule.round_at(at.time), planned),
        "rounds": planned,
        "sponsor": record.sponsor,
        "uri": record.uri,
        "recipe_hash": record.params.recipe_hash,
        "initial_state": record.params.initial_state,
        "final_state": settlement.final_state(record.run, at=at),
        **session.amounts("escrow", escrow),
        "terms": terms(session, record),
        "attestation": attestation,
        "open": [_phase(phase, at.time) for phase in phases],
        "next": None if upcoming is None else _phase(upcoming, at.time),
        "seats": {role.name.lower() + "s": seats(session, record, role, at.time) for role in Role},
        "history": [round_document(session, record, r) for r in _closed_rounds(record, at.time)],
        "penalties": len(record.penalties),
    }
    return Answer(document, _shown(session, document))


def terms(session: Session, record: RunRecord) -> dict[str, Any]:
    """Returns the run's parameters; amounts in tokens and in wei."""
    params = record.params
    return {
        "start": params.start,
        "period_s": params.schedule().period,
        "overlap": params.overlap,
        "trainer_seats": params.trainer_limit,
        "validator_seats": params.validator_limit,
        "open_trainers": params.open_trainers,
        **session.amounts("trainer_pool", params.trainer_pool),
        "full_seats": params.full_seats,
        **session.amounts("validator_pool", params.validator_pool),
        **session.amounts("trainer_min_bond", params.trainer_min_bond),
        **session.amounts("validator_min_bond", params.validator_min_bond),
        **session.amounts("validator_max_stake", params.validator_max_stake),
        "exit_delay_s": params.exit_delay,
        "verification": LEVEL_NAMES[Level(params.verification)],
        "penalties_bps": {fault: getattr(params, f"{fault}_bps") for fault in FAULTS},
    }


def policy_of(record: RunRecord) -> PolicyFile | None:
    """Returns the policy of an attested run; None for other runs, or if the run's files are unavailable."""
    if not Level(record.params.verification).uses_attestation:
        return None
    from earnest.client.run.bundle import BundleError, load_bundle
    from earnest.client.storage.objects import ObjectStore

    try:
        return load_bundle(record.uri, record.params, ObjectStore("memory:///")).attestation
    except (BundleError, StorageError):
        return None


def attestation_document(record: RunRecord, policy: PolicyFile | None) -> dict[str, Any] | None:
    """Returns the attestation terms of a run; None for a run without attestation.

    Root and workloads are those of `policy`, and None without it.
    """
    params = record.params
    if not Level(params.verification).uses_attestation:
        return None
    return {
        "verification": LEVEL_NAMES[Level(params.verification)],
        "policy": params.attestation_policy,
        "root": None if policy is None else policy.root_name,
        "root_id": None if policy is None else policy.policy.root_id,
        "workloads": None if policy is None else list(policy.policy.workloads),
    }


def seats(session: Session, record: RunRecord, role: Role, now: int) -> list[dict[str, Any]]:
    """Returns a role's seats in the next round: owner, operator, stake, and URL of the objects."""
    following = record.params.schedule().next_round(now)
    rows: list[dict[str, Any]] = []
    for index, seat in sorted(record.seats[role].items()):
        owner = seat.owner.latest
        barred = record.barred.get(owner or "", 0)
        rows.append(
            {
                "seat": index,
                "account": owner,
                "operator": seat.operator.latest,
                "from_round": seat.tenure_start(MAX_ROUNDS),
                **session.amounts("stake", seat.stake.latest or 0),
                "uri": seat.uri,
                "barred_until_round": barred if barred > following else None,
            }
        )
    return rows


def round_document(session: Session, record: RunRecord, round: int) -> dict[str, Any]:
    """Returns a round whose report reveal is over: commits, reveals, verdicts, weights (0 to 1) and pay."""
    seen, settled = record.round(round), record.settled(round)
    trainers = [
        {
            "seat": seat,
            "account": record.owner(Role.TRAINER, seat, round),
            "committed": seat in seen.commits,
            "revealed": seat in seen.manifests,
            "weight": settled.consensus[seat] / WEIGHT_ONE,
            "verdict": _verdict(settled.verdicts[seat], seat in seen.manifests),
            **session.amounts("pay", settled.trainer_pay[seat]),
        }
        for seat in (range(record.trainer_count()) if round < record.planned_rounds else ())
        if record.owner(Role.TRAINER, seat, round) is not None
    ]
    return {
        "round": round,
        "void": settled.void,
        "base_state": settled.pair[0] if settled.pair else None,
        "newest_state": settled.pair[1] if settled.pair else None,
        "reports": sorted(seen.report_words),
        "trainers": trainers,
    }


def which_round(round: int, rounds: int) -> str:
    """Names a round; for the one after the last, adds what it is for."""
    return f"round {round}" + (", where only the final state is reported" if round == rounds else "")


def _closed_rounds(record: RunRecord, now: int) -> list[int]:
    schedule = record.params.schedule()
    return [r for r in range(record.planned_rounds + 1) if schedule.report_reveal(r).end <= now]


def _verdict_text(verdict: str) -> str:
    """Returns the text for people of a verdict of `round_document`."""
    member = Verdict.__members__.get(verdict.replace(" ", "_").upper())
    return verdict if member is None else TEXTS[member]


def _verdict(verdict: int | None, revealed: bool) -> str:
    if not revealed:
        return "absent"
    return "undecided" if verdict is None else Verdict(verdict).name.lower().replace("_", " ")


def _phase(phase: Phase, now: int) -> dict[str, Any]:
    return {
        "round": phase.round,
        "phase": phase.name,
        "opens": phase.window.start,
        "closes": phase.window.end,
        "seconds_left": phase.left(now),
    }


def _shown(session: Session, document: dict[str, Any]) -> list[RenderableType]:
    terms = document["terms"]
    penalties = ", ".join(f"{bps / 100:g} % {fault}" for fault, bps in terms["penalties_bps"].items())
    shown: list[RenderableType] = [
        f"Run {document['run']}: {document['state']}, round {document['round']} of {document['rounds']}",
        f"  sponsor {document['sponsor']}, {brief(document['escrow'])} {session.symbol} in escrow",
        f"  files {document['uri']}",
        f"  starts {when(terms['start'])}, a round takes {countdown(terms['period_s'])}",
        f"  pay per round: at most {terms['trainer_pool']} {session.symbol} to trainers"
        f" and {terms['validator_pool']} {session.symbol} to validators;"
        f" trainers get all of it from a summed weight of {terms['full_seats']} on",
        f"  minimum bonds: {terms['trainer_min_bond']} {session.symbol} for a trainer,"
        f" {terms['validator_min_bond']} {session.symbol} for a validator",
        f"  penalties, as shares of the bond: {penalties}",
        f"  a bond can be withdrawn {countdown(terms['exit_delay_s'])} after its exit starts",
        f"  seats: {terms['trainer_seats']} trainers, {'open to all' if terms['open_trainers'] else 'listed'};"
        f" {terms['validator_seats']} validators, listed",
    ]
    if (attestation := document["attestation"]) is not None:
        root = attestation["root"] or "unknown: the run's files are unavailable"
        shown.append(
            f"  verification: {attestation['verification']}, policy 0x{attestation['policy'].hex()}; root: {root}"
        )
    for phase in document["open"]:
        left, which = countdown(phase["seconds_left"]), which_round(phase["round"], document["rounds"])
        shown.append(f"  open: {phase['phase']} of {which}, {left} left ({when(phase['closes'])})")
    if (following := document["next"]) is not None:
        left = countdown(following["seconds_left"])
        shown.append(
            f"  next: {following['phase']} of round {following['round']} in {left} ({when(following['opens'])})"
        )
    if document["final_state"] is not None:
        shown.append(f"  final state {document['final_state'].hex()}")
    for role, seats in document["seats"].items():
        rows = [
            (s["seat"], s["account"], s["operator"], brief(s["stake"]), s["from_round"], s["uri"])
            for s in seats
        ]
        headings = (
            "seat",
            "account",
            "operator",
            f"stake ({session.symbol})",
            "from round",
            "URL of objects",
        )
        shown.append(table(role.capitalize(), headings, rows) if rows else f"No {role} yet.")
    for played in document["history"]:
        rows = [
            (t["seat"], _verdict_text(t["verdict"]), f"{t['weight']:.3f}", brief(t["pay"]), t["account"])
            for t in played["trainers"]
        ]
        outcome = VOID if played["void"] else f"{len(played['reports'])} reports"
        title = f"Round {played['round']}: {outcome}"
        shown.append(
            table(title, ("seat", "verdict", "weight (0 to 1)", f"pay ({session.symbol})", "account"), rows)
            if rows
            else title
        )
    return shown
