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
    """Make a policy from quotes of the machines that may train, or check and show one.

    The run file names it: attestation_policy.

    Example: earnest attest policy --from-quote quote.bin --out policy.json

    Parameters
    ----------
    file
        A policy file to check and show.
    from_quote
        A quote, as for `verify`; repeat for more workloads, all of one TEE type.
    root
        The root certificate to trust, PEM or DER (default: Intel's).
    out
        Path of the new policy file. Fails if it already exists.
    status
        Accepted TCB status; repeatable.
    deny_advisory
        Security advisory (INTEL-SA-01192) that no machine may be affected by; repeatable.
    deny_family
        Refused processor family (FMSPC, 12 upper-case hexadecimal digits); repeatable.
    event
        NAME=HEX: an event that the TD's log must have exactly once, such as the training container; repeatable.
    grace_s
        Seconds after its TCB level's date for which an OutOfDate machine is accepted, if that status is.
    gpus
        Number of NVIDIA GPUs that the evidence file must show.
    ttl_s
        Lifetime of a registered key, in seconds.
    platform_keys
        Largest number of keys of one machine in the run at a time.
    platform_bond_wei
        Largest sum of the bonds of one machine's trainers, in wei; 0 for no limit.
    evaluation_floor
        Lowest accepted TCB evaluation number of the collateral.
    guardian
        Address that may deny entries and raise the floor later (default: nobody).
    """
    if (file is None) == (not from_quote):
        raise UsageError(
            "a policy is either read from a file or made from quotes", "give one of FILE and --from-quote"
        )
    if file is not None:
        policy_file = PolicyFile.read(file)
        return Answer(_policy_document(policy_file), _policy_lines(policy_file))
    with Session(flags) as session:
        quotes = [parsed_quote(read_report(session, name)) for name in from_quote]
        policy_file = PolicyFile.from_quotes(
            quotes,
            _document(
                statuses=status,
                denied_advisories=deny_advisory,
                denied_families=deny_family,
                events=tuple(_event(text) for text in event),
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
        write_file(out, policy_file.to_text().encode(), new=True)
    written = (
        []
        if out is None
        else [f"Written to {out}. In the run file: attestation_policy = {json.dumps(str(out))}"]
    )
    document = {**_policy_document(policy_file), "path": None if out is None else str(out)}
    return Answer(document, [*_policy_lines(policy_file), *written])


def _policy_document(policy_file: PolicyFile) -> dict[str, Any]:
    return {
        "hash": policy_file.hash,
        "root": policy_file.root_name,
        "policy": read_json(policy_file.policy.to_json()),
        "document": read_json(policy_file.document.to_json()),
    }


def _policy_lines(policy_file: PolicyFile) -> list[str]:
    policy = policy_file.policy
    document = policy_file.document
    guardian = "nobody" if policy.guardian == ZERO_ADDRESS else policy.guardian
    return [
        f"policy hash: 0x{policy_file.hash.hex()}",
        f"root: {policy_file.root_name}, id 0x{policy.root_id.hex()}",
        *(f"workload: 0x{workload.hex()}" for workload in policy.workloads),
        f"quoting enclave: product {policy.qe_product}, SVN from {policy.qe_min_svn};"
        f" platform CAs: {len(policy.pck_cas)}",
        f"keys: valid for {policy.ttl_s} s, {policy.platform_keys} per machine; guardian: {guardian}",
        f"TCB status: {', '.join(document.statuses)}; grace {document.grace_s} s;"
        f" evaluation number from {max(policy.evaluation_floor, document.evaluation_floor)}",
        *(f"event: {name} = {payload}" for name, payload in document.events),
    ]


def _document(**values: Any) -> Any:
    from earnest.attestation.policy_document import PolicyDocument, PolicyDocumentError

    try:
        return PolicyDocument(**values)
    except PolicyDocumentError as error:
        raise UsageError(str(error), "see `earnest attest policy --help`") from error


def _event(text: str) -> tuple[str, str]:
    name, equals, payload = text.partition("=")
    if not equals:
        raise UsageError(f"{text!r} is not an event", "write NAME=HEX")
    return name, payload.lower()


def _root_of(quotes: Sequence[Quote], file: Path | None) -> bytes:
    """Returns the id of the root to pin. Raises UsageError if a quote's own chain ends in another root."""
    from earnest.attestation.formats.quote import QuoteError
    from earnest.attestation.policy_file import own_root_id
    from earnest.attestation.roots import INTEL_ROOT_ID, root_id

    wanted = INTEL_ROOT_ID if file is None else root_id(read_file(file))
    for quote in quotes:
        try:
            own = own_root_id(quote)
        except QuoteError as error:
            raise UsageError(
                f"the quote has no usable certificate chain: {error}", "give another quote"
            ) from error
        if own != wanted:
            raise UsageError(
                f"the quote's chain ends in {root_name(own)} (0x{own.hex()}), not in {root_name(wanted)}",
                "to trust that root, give its certificate with --root",
            )
    return wanted
