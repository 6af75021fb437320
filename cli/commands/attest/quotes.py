"""`earnest attest verify` and `simulate`: checks a quote or another vendor's report, writes simulated ones."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from earnest.attestation.policy_document import SignedStatus
from earnest.attestation.policy_file import MAX_POLICY_BYTES, PolicyFile
from earnest.attestation.prover.attester import REPORT_DATA_BYTES
from earnest.attestation.roots import INTEL_SGX_ROOT_CA, SIMULATED_WARNING, root_name
from earnest.cli.commands.attest.guardian import hexadecimal
from earnest.cli.commands.attest.keys import Count
from earnest.cli.exits import Exit, UsageError
from earnest.cli.files import MAX_FILE_BYTES, read_file, write_file
from earnest.cli.flags import Flags
from earnest.cli.output import Answer, table, when
from earnest.cli.session import Session

if TYPE_CHECKING:
    from earnest.attestation.formats.quote import Quote
    from earnest.attestation.verifier.vendor_reports import Format
    from earnest.attestation.verifier.verification import Verification

PLAIN = Flags()

QuoteFormat = Literal["tdx4", "tdx5", "sgx3"]
Seconds = Annotated[int, Parameter(validator=Number(gte=0, lt=1 << 40))]
STDIN = "-"
UNUSABLE = {
    "quote format": "the quote's file is no quote (TDX version 4 or 5, SGX version 3; binary, hexadecimal or base64)",
    "collateral format": "the collateral's file is no collateral",
    "root certificate": "the root's file is no root certificate",
}
"""Error texts for unusable inputs, by the check that fails."""


def verify(
    file: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    at: Seconds,
    collateral: Path | None = None,
    root: Path | None = None,
    policy: Path | None = None,
    event_log: Path | None = None,
    flags: Flags = PLAIN,
) -> Answer:
    """Check a TDX or SGX quote offline: every check and its reason. Ends with 0, 1 (refused) or 2 (unusable).

    Also checks reports that no policy accepts yet, and says so: of AMD SEV-SNP, AWS Nitro, NVIDIA GPUs and NVIDIA's
    attestation service (NRAS).

    Example: earnest attest verify quote.bin --collateral collateral.json --root root.pem --at 1767225600

    Parameters
    ----------
    file
        The file of the quote or report, or - for stdin: binary, hexadecimal, base64 or JSON.
    at
        The time to judge by, in Unix seconds: everything signed must be valid then.
    collateral
        For a quote Intel's collateral, JSON as dcap-qvl writes it; for SEV-SNP the certificates VCEK, ASK and ARK in
        one PEM file; for an NRAS token NVIDIA's key set.
    root
        The root certificate to trust, PEM or DER (default: the vendor's).
    policy
        A policy file, or its `document` alone, that the quote must satisfy too.
    event_log
        The TD's event log, as JSON: it must replay to the quote's registers.
    """
    from earnest.attestation.verifier.vendor_reports import recognise, verify_vendor_report

    with Session(flags) as session:
        content = read_report(session, file)
    format = recognise(content)
    material = _collateral(format, collateral)
    pinned = None if root is None else read_file(root)
    if format == "quote":
        verified = _verify_quote(content, material, pinned or INTEL_SGX_ROOT_CA, at, policy, event_log)
    else:
        _refuse_flags(format, root=root, policy=policy, event_log=event_log)
        verified = verify_vendor_report(format, content, at, collateral=material, root=pinned)
    refused = not (verified.accepted and (policy is None or verified.policy_accepted))
    code = Exit.USAGE if verified.unusable else Exit.REFUSED if refused else Exit.OK
    name = None if verified.root_id is None else root_name(verified.root_id)
    document = {**verified.as_json(), "format": format, "root": name, "at": at}
    return Answer(document, _verification_lines(verified, format, policy is not None), exit=code)


def simulate(
    folder: Path,
    /,
    *,
    report_data: str | None = None,
    code: str = "",
    platform: Count = 0,
    format: QuoteFormat = "tdx4",
    status: SignedStatus = "UpToDate",
    debug: Annotated[bool, Parameter(negative="")] = False,
    seed: str | None = None,
    flags: Flags = PLAIN,
) -> Answer:
    """Write a SIMULATED quote, its root, collateral and a policy that accepts it. For development: NOT A TEE.

    Example: earnest attest simulate simulated --code "my training image"

    Parameters
    ----------
    folder
        Folder for root.pem, collateral.json, quote.bin, event_log.json and policy.json; created if missing.
    report_data
        Report data of the quote: 64 bytes, hexadecimal (default: zeros).
    code
        Code to measure, as text: another text is another workload.
    platform
        Number of the simulated machine.
    format
        Kind of quote: TDX version 4 or 5, SGX version 3.
    status
        TCB status that the collateral gives the machine.
    debug
        Make a quote of a machine in debug mode, which every policy refuses.
    seed
        Seed of a simulated vendor of your own (default: the shared one).
    """
    from earnest.attestation.prover.simulated import DEFAULT_SEED, SimulatedAttester, SimulatedVendor

    data = (
        bytes(REPORT_DATA_BYTES)
        if report_data is None
        else hexadecimal(report_data, REPORT_DATA_BYTES, "--report-data")
    )
    vendor = SimulatedVendor(DEFAULT_SEED if seed is None else seed.encode())
    attester = SimulatedAttester(vendor, code.encode(), platform, format, debug)
    quoted = attester.quote(data)
    collateral = vendor.collateral(attester.tee, status=status)
    policy_file = PolicyFile.from_quotes([parsed_quote(quoted.quote)])
    files = {
        "root.pem": vendor.root_pem,
        "collateral.json": collateral,
        "quote.bin": quoted.quote,
        "policy.json": policy_file.to_text().encode(),
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


# Showing


def _verification_lines(verified: Verification, format: Format, judged: bool) -> list[Any]:
    from earnest.attestation.verifier.vendor_reports import NAMES

    rows = [("pass" if check.passed else "FAIL", check.name, check.reason) for check in verified.checks]
    lines: list[Any] = [table("Checks", ("", "check", "reason"), rows)]
    if verified.root_id is not None:
        lines.append(f"root: {root_name(verified.root_id)}, id 0x{verified.root_id.hex()}")
    if verified.workload is not None:
        lines.append(f"workload: 0x{verified.workload.hex()}")
    if verified.status is not None:
        advisories = f", advisories {', '.join(verified.advisories)}" if verified.advisories else ""
        lines.append(f"status: {verified.status}{advisories}")
    lines += [f"not checked: {entry}" for entry in verified.unchecked]
    answer = "unusable" if verified.unusable else "accepted" if verified.accepted else "refused"
    faults = [UNUSABLE[check.name] for check in verified.failed if check.name in UNUSABLE]
    because = f": {'; '.join(faults)}" if verified.unusable and faults else ""
    conclusion = f"The {NAMES[format]} is {answer}{because}."
    if judged and verified.accepted:
        conclusion += f" The policy {'accepts' if verified.policy_accepted else 'REFUSES'} it."
    if format != "quote":
        conclusion += (
            " No policy accepts it in place of a quote: keys are registered with TDX and SGX quotes only."
        )
    return [*lines, conclusion]


# Reading


def _verify_quote(
    quote: bytes, collateral: bytes, root: bytes, at: int, policy: Path | None, event_log: Path | None
) -> Verification:
    from earnest.attestation.policy_document import PolicyDocument
    from earnest.attestation.verifier.registration import verify_quote_under_policy

    log = None if event_log is None else read_file(event_log)
    rules, document = (None, PolicyDocument()) if policy is None else _policy_or_document(policy)
    return verify_quote_under_policy(quote, collateral, root, at, rules, document, event_log=log)


def _collateral(format: Format, path: Path | None) -> bytes:
    """Reads --collateral. Raises UsageError if the format needs it and it is missing, or the other way round."""
    from earnest.attestation.verifier.vendor_reports import COLLATERAL, NAMES

    if format in COLLATERAL and path is None:
        raise UsageError(
            f"the {NAMES[format]} cannot be verified alone", f"give --collateral: {COLLATERAL[format]}"
        )
    if format not in COLLATERAL and path is not None:
        raise UsageError(f"the {NAMES[format]} needs no collateral", "leave --collateral out")
    return b"" if path is None else read_file(path)


def _refuse_flags(format: Format, *, root: Path | None, policy: Path | None, event_log: Path | None) -> None:
    """Raises UsageError for a flag that a vendor's report has no use for."""
    from earnest.attestation.verifier.vendor_reports import NAMES, PINNED_ROOTS

    if policy is not None or event_log is not None:
        raise UsageError(
            f"no policy judges the {NAMES[format]} yet",
            "leave --policy and --event-log out: they are for quotes",
        )
    if root is not None and format not in PINNED_ROOTS:
        raise UsageError(f"the {NAMES[format]} is verified under fixed roots", "leave --root out")


def _policy_or_document(path: Path) -> tuple[Any, Any]:
    """Returns (policy, document) of a policy file, (None, document) of a document alone."""
    from earnest.attestation.policy_document import PolicyDocument, PolicyDocumentError

    content = read_file(path, MAX_POLICY_BYTES)
    try:
        document = PolicyDocument.from_json(content)
    except PolicyDocumentError:
        policy_file = PolicyFile.from_bytes(content)
        return policy_file.policy, policy_file.document
    return None, document


def parsed_quote(quote: bytes) -> Quote:
    from earnest.attestation.formats.quote import QuoteError, parse_quote

    try:
        return parse_quote(quote)
    except QuoteError as error:
        raise UsageError(
            f"the file is not a quote: {error}", "give a TDX version 4 or 5 or an SGX version 3 quote"
        ) from error


def read_report(session: Session, name: str) -> bytes:
    """Reads a quote or report from a file or stdin: binary and JSON as they are, hexadecimal and base64 decoded."""
    stdin = session.environment.stdin
    content = stdin.buffer.read(MAX_FILE_BYTES + 1) if name == STDIN else read_file(Path(name))
    if len(content) > MAX_FILE_BYTES:
        raise UsageError("stdin is too long for a quote", f"give at most {MAX_FILE_BYTES} bytes")
    if not content.isascii() or b"\0" in content:
        return content
    text = b"".join(content.split())
    try:
        return bytes.fromhex(text.removeprefix(b"0x").decode())
    except ValueError:
        pass
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return content
