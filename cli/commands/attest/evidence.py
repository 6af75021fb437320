"""`earnest attest`: quotes and policies, checked and made. What needs a chain: `registration.py`, `narrowing.py`."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from earnest.attestation.policy_document import SignedStatus, TcbStatus
from earnest.attestation.policy_file import DEFAULT_TTL_S, MAX_POLICY_BYTES, PolicyFile
from earnest.attestation.prover.attester import MAX_QUOTE_BYTES, REPORT_DATA_BYTES
from earnest.attestation.roots import SIMULATED_WARNING, root_name
from earnest.cli.app import make_group
from earnest.cli.commands.attest.guardian import deny, hexadecimal, raise_floor, revoke
from earnest.cli.commands.attest.keys import Count, register, show
from earnest.cli.exits import Exit, UsageError
from earnest.cli.files import read_file, write_file
from earnest.cli.flags import ChainFlags, Flags, SendFlags
from earnest.cli.output import Answer, table, when
from earnest.cli.session import Session
from earnest.protocol.constants import ZERO_ADDRESS

if TYPE_CHECKING:
    from earnest.attestation.formats.quote import Quote
    from earnest.attestation.verifier.verification import Verification

app = make_group("attest")
PLAIN, CHAIN, SEND = Flags(), ChainFlags(), SendFlags()

Format = Literal["tdx4", "tdx5", "sgx3"]
Seconds = Annotated[int, Parameter(validator=Number(gte=0, lt=1 << 40))]
STDIN = "-"
NO_INPUT = {
    "quote format": "the quote's file is no quote (TDX version 4 or 5, SGX version 3; binary, hexadecimal or base64)",
    "collateral format": "the collateral's file is no collateral",
    "root certificate": "the root's file is no root certificate",
}
"""What an unusable input is not, by the check that it fails."""


@app.command
def verify(
    quote: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    collateral: Path,
    at: Seconds,
    root: Path | None = None,
    policy: Path | None = None,
    event_log: Path | None = None,
    flags: Flags = PLAIN,
) -> Answer:
    """Check a TDX or SGX quote offline: every check and its reason. Ends with 0, 1 (refused) or 2 (unusable).

    Example: earnest attest verify quote.bin --collateral collateral.json --root root.pem --at 1767225600

    Parameters
    ----------
    quote
        The quote's file, or - for stdin: binary, hexadecimal or base64.
    collateral
        What Intel says of the machine, as JSON in dcap-qvl's format.
    at
        The time to judge by, as Unix seconds: all that is signed must be valid then.
    root
        The root certificate to trust, PEM or DER (default: Intel's).
    policy
        A policy file, or its `document` alone, that the quote must satisfy too.
    event_log
        The TD's event log, as JSON: it must replay to the quote's registers.
    """
    from earnest.attestation.policy_document import PolicyDocument
    from earnest.attestation.verifier.registration import verify_quote_under_policy

    with Session(flags) as session:
        read = _read_quote(session, quote)
        pinned = _intel_root() if root is None else read_file(root)
        judged, log = read_file(collateral), None if event_log is None else read_file(event_log)
        rules, document = (None, PolicyDocument()) if policy is None else _policy_or_document(policy)
    found = verify_quote_under_policy(read, judged, pinned, at, rules, document, event_log=log)
    refused = not (found.accepted and (policy is None or found.policy_accepted))
    code = Exit.USAGE if found.unusable else Exit.REFUSED if refused else Exit.OK
    return Answer(_verified(found, at), _verification_lines(found, policy is not None), exit=code)


@app.command
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
        quotes = [_parsed(_read_quote(session, one)) for one in from_quote]
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


@app.command
def simulate(
    folder: Path,
    /,
    *,
    report_data: str | None = None,
    code: str = "",
    platform: Count = 0,
    format: Format = "tdx4",
    status: SignedStatus = "UpToDate",
    debug: Annotated[bool, Parameter(negative="")] = False,
    seed: str | None = None,
    flags: Flags = PLAIN,
) -> Answer:
    """Write a SIMULATED quote, its root, collateral and a policy that takes it. For development: NOT A TEE.

    Example: earnest attest simulate simulated --code "my training image"

    Parameters
    ----------
    folder
        Where root.pem, collateral.json, quote.bin, event_log.json and policy.json go; made where missing.
    report_data
        64 bytes as hexadecimal that the quote carries (default: zeros).
    code
        What is measured: another text is another workload.
    platform
        Number of the simulated machine.
    format
        Kind of quote: TDX version 4 or 5, SGX version 3.
    status
        TCB status that the collateral gives the machine.
    debug
        A quote of a machine in debug mode, which everything refuses.
    seed
        Another vendor than the one that everyone shares.
    """
    from earnest.attestation.prover.simulated import DEFAULT_SEED, SimulatedAttester, SimulatedVendor

    data = (
        bytes(REPORT_DATA_BYTES)
        if report_data is None
        else hexadecimal(report_data, REPORT_DATA_BYTES, "--report-data")
    )
    vendor = SimulatedVendor(DEFAULT_SEED if seed is None else seed.encode())
    attester = SimulatedAttester(vendor, code.encode(), platform, format, debug)
    quoted, collateral = attester.quote(data), vendor.collateral(attester.tee, status=status)
    made = PolicyFile.from_quotes([_parsed(quoted.quote)])
    files = {
        "root.pem": vendor.root_pem,
        "collateral.json": collateral,
        "quote.bin": quoted.quote,
        "policy.json": made.to_text().encode(),
        **({} if quoted.event_log is None else {"event_log.json": quoted.event_log}),
    }
    for name, content in files.items():
        write_file(folder / name, content)
    document = {
        "simulated": True,
        "folder": str(folder),
        "files": sorted(files),
        "root_id": vendor.root_id,
        "workload": attester.workload,
        "report_data": data,
        "valid_from": vendor.made,
        "valid_until": vendor.lasts,
    }
    check = f"earnest attest verify {folder}/quote.bin --collateral {folder}/collateral.json --root {folder}/root.pem"
    lines = [
        SIMULATED_WARNING,
        f"root id 0x{vendor.root_id.hex()} ({root_name(vendor.root_id)})",
        f"workload 0x{attester.workload.hex()}",
        f"In {folder}: {', '.join(sorted(files))}; valid from {when(vendor.made)} to {when(vendor.lasts)}",
        f"Check it: {check} --at {vendor.made}",
    ]
    return Answer(document, lines)


for _command in (register, show, deny, raise_floor, revoke):
    app.command(_command)


# Showing


def _verified(found: Verification, at: int) -> dict[str, Any]:
    name = None if found.root_id is None else root_name(found.root_id)
    return {**found.as_json(), "root": name, "at": at}


def _verification_lines(found: Verification, judged: bool) -> list[Any]:
    rows = [("pass" if check.passed else "FAIL", check.name, check.reason) for check in found.checks]
    words = "unusable" if found.unusable else "accepted" if found.accepted else "refused"
    lines: list[Any] = [table("Checks", ("", "check", "found"), rows)]
    if found.root_id is not None:
        lines.append(f"root: {root_name(found.root_id)}, id 0x{found.root_id.hex()}")
    if found.workload is not None:
        lines.append(f"workload: 0x{found.workload.hex()}")
    if found.status is not None:
        told = f", advisories {', '.join(found.advisories)}" if found.advisories else ""
        lines.append(f"status: {found.status}{told}")
    lines += [f"not checked: {one}" for one in found.unchecked]
    verdict = f"The evidence is {words}."
    if found.unusable:
        told = [NO_INPUT[one.name] for one in found.checks if not one.passed and one.name in NO_INPUT]
        verdict = f"The evidence is unusable: {'; '.join(told)}." if told else verdict
    if judged and found.accepted:
        verdict += f" The policy {'accepts' if found.policy_accepted else 'REFUSES'} it."
    return [*lines, verdict]


def _policy_document(found: PolicyFile) -> dict[str, Any]:
    return {
        "hash": found.hash,
        "root": found.root_name,
        "policy": json.loads(found.policy.to_json()),
        "document": json.loads(found.document.to_json()),
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


# Reading


def _policy_or_document(path: Path) -> tuple[Any, Any]:
    """(policy, document) of a policy file; (None, document) of a document alone."""
    from earnest.attestation.policy_document import PolicyDocument, PolicyDocumentError

    content = read_file(path, MAX_POLICY_BYTES)
    try:
        document = PolicyDocument.from_json(content)
    except PolicyDocumentError:
        whole = PolicyFile.from_bytes(content)
        return whole.policy, whole.document
    return None, document


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


def _intel_root() -> bytes:
    from earnest.attestation.roots import INTEL_SGX_ROOT_CA

    return INTEL_SGX_ROOT_CA


def _parsed(quote: bytes) -> Quote:
    from earnest.attestation.formats.quote import QuoteError, parse_quote

    try:
        return parse_quote(quote)
    except QuoteError as error:
        raise UsageError(
            f"that is no quote: {error}", "give a TDX version 4 or 5 or an SGX version 3 quote"
        ) from error


def _read_quote(session: Session, name: str) -> bytes:
    """The quote in a file or on stdin: as it is, or out of hexadecimal or base64 text."""
    limit = 4 * MAX_QUOTE_BYTES
    content = (
        session.environment.stdin.buffer.read(limit + 1) if name == STDIN else read_file(Path(name), limit)
    )
    if len(content) > limit:
        raise UsageError("stdin is too long for a quote", f"a quote has at most {MAX_QUOTE_BYTES} bytes")
    if not content.isascii() or b"\0" in content:
        return content
    text = b"".join(content.split())
    try:
        return bytes.fromhex(text.removeprefix(b"0x").decode())
    except ValueError:
        pass
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return content
