"""`earnest attest policy`: makes a policy from quotes, or checks and shows one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from earnest.attestation.policy_document import TcbStatus
from earnest.attestation.policy_file import DEFAULT_TTL_S, PolicyFile
from earnest.attestation.roots import root_name
from earnest.base.strict_json import read_json
from earnest.cli.commands.attest.keys import Count
from earnest.cli.commands.attest.quotes import Seconds, parsed_quote, read_report
from earnest.cli.exits import UsageError
from earnest.cli.files import read_file, write_file
from earnest.cli.flags import Flags
from earnest.cli.output import Answer
from earnest.cli.session import Session
from earnest.protocol.constants import ZERO_ADDRESS

if TYPE_CHECKING:
    from earnest.attestation.formats.quote import Quote

PLAIN = Flags()


def policy(
    file: Path | None = None,
    /,
    *,
    from_quote: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    root: Path | None = None,
    out: Path | None = None,
    status: Annotated[tuple[TcbStatus, ...], Parameter(negative="")] = ("UpToDate",),
    deny_advisory: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    deny_family: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    event: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    grace_s: Seconds = 0,
    gpus: Count = 0,
    ttl_s: Seconds = DEFAULT_TTL_S,
    platform_keys: Count = 1,
    platform_bond_wei: int = 0,
    evaluation_floor: Count = 0,
    guardian: str = ZERO_ADDRESS,
    flags: Flags = PLAIN,
) -> Answer:
    """Make a policy from quotes of what may train, or check and show one. The run file names it: attestation_policy.

    Example: earnest attest policy --from-quote quote.bin --out policy.json

    Parameters
    ----------
    file
        A policy file to check and show.
    from_quote
        A quote, as for `verify`; repeat it for more workloads, all of one TEE type.
    root
        The root certificate to trust, PEM or DER (default: Intel's).
    out
        Where to write the policy; not over another file.
    status
        TCB status that counts; repeat it for more.
    deny_advisory
        Security advisory (INTEL-SA-01192) that no machine may be exposed to; repeatable.
    deny_family
        Processor family (FMSPC, 12 upper-case hexadecimal digits) that is refused; repeatable.
    event
        NAME=HEX, an event that must be in the TD's log exactly once, such as the training container; repeatable.
    grace_s
        Seconds for which an OutOfDate machine counts after its TCB level's date, where that status counts.
    gpus
        NVIDIA GPUs that the evidence must show.
    ttl_s
        Seconds that a registered key counts.
    platform_keys
        Keys that one machine may have in the run at a time.
    platform_bond_wei
        Bonds that one machine's trainers may have together; 0 for no limit.
    evaluation_floor
        Lowest TCB evaluation number of the collateral.
    guardian
        Address that may deny entries and raise the floor later (default: nobody).
    """
    if (file is None) == (not from_quote):
        raise UsageError(
            "a policy is read from a file or made from quotes", "give FILE or --from-quote, not both"
        )
    if file is not None:
        found = PolicyFile.read(file)
        return Answer(_policy_document(found), _policy_lines(found))
    with Session(flags) as session:
        quotes = [parsed_quote(read_report(session, one)) for one in from_quote]
        found = PolicyFile.from_quotes(
            quotes,
            _document(
                statuses=status,
                denied_advisories=deny_advisory,
                denied_families=deny_family,
                events=tuple(_event(one) for one in event),
                grace_s=grace_s,
                gpus=gpus,
            ),
            root=_root_of(quotes, root),
            ttl_s=ttl_s,
            platform_keys=platform_keys,
            platform_bond=platform_bond_wei,
            evaluation_floor=evaluation_floor,
            guardian=guardian if guardian == ZERO_ADDRESS else session.address(guardian),
        )
    if out is not None:
        write_file(out, found.to_text().encode(), new=True)
    written = (
        []
        if out is None
        else [f"Written to {out}. In the run file: attestation_policy = {json.dumps(str(out))}"]
    )
    document = {**_policy_document(found), "path": None if out is None else str(out)}
    return Answer(document, [*_policy_lines(found), *written])


def _policy_document(found: PolicyFile) -> dict[str, Any]:
    return {
        "hash": found.hash,
        "root": found.root_name,
        "policy": read_json(found.policy.to_json()),
        "document": read_json(found.document.to_json()),
    }


def _policy_lines(found: PolicyFile) -> list[str]:
    rules, document = found.policy, found.document
    guardian = "nobody" if rules.guardian == ZERO_ADDRESS else rules.guardian
    return [
        f"policy hash: 0x{found.hash.hex()}",
        f"root: {found.root_name}, id 0x{rules.root_id.hex()}",
        *(f"workload: 0x{workload.hex()}" for workload in rules.workloads),
        f"quoting enclave: product {rules.qe_product}, SVN from {rules.qe_min_svn};"
        f" platform CAs: {len(rules.pck_cas)}",
        f"keys: count {rules.ttl_s} s, {rules.platform_keys} per machine; guardian: {guardian}",
        f"TCB status: {', '.join(document.statuses)}; grace {document.grace_s} s;"
        f" evaluation number from {max(rules.evaluation_floor, document.evaluation_floor)}",
        *(f"event: {name} = {payload}" for name, payload in document.events),
    ]


def _document(**rules: Any) -> Any:
    from earnest.attestation.policy_document import PolicyDocument, PolicyDocumentError

    try:
        return PolicyDocument(**rules)
    except PolicyDocumentError as error:
        raise UsageError(str(error), "see `earnest attest policy --help`") from error


def _event(text: str) -> tuple[str, str]:
    name, equals, payload = text.partition("=")
    if not equals:
        raise UsageError(f"{text!r} is no event", "write NAME=HEX")
    return name, payload.lower()


def _root_of(quotes: Sequence[Quote], given: Path | None) -> bytes:
    """The root to pin. Raises UsageError if the quotes' own chains do not even claim it."""
    from earnest.attestation.formats.quote import QuoteError
    from earnest.attestation.policy_file import own_root_id
    from earnest.attestation.roots import INTEL_ROOT_ID, root_id

    wanted = INTEL_ROOT_ID if given is None else root_id(read_file(given))
    for quote in quotes:
        try:
            own = own_root_id(quote)
        except QuoteError as error:
            raise UsageError(
                f"the quote has no certificate chain of use: {error}", "give another quote"
            ) from error
        if own != wanted:
            raise UsageError(
                f"the quote's chain ends in {root_name(own)} (0x{own.hex()}), not in {root_name(wanted)}",
                "give the root's certificate with --root if you mean to trust it",
            )
    return wanted
