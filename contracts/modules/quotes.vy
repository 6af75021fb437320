# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Quotes
@license MIT
@notice Fields of TDX (versions 4 and 5) and SGX (version 3) quotes, and of a quoting enclave's report. Section 11.
@dev Offsets are those of Intel's DCAP quote library, numbers are little endian. The signed part must have exactly the
     length of its kind, so every offset below lies inside it.
"""

from interfaces import IAttestationRegistry

HEADER: constant(uint256) = 48
HEADER_V5: constant(uint256) = 54          # with the body's type and size
SGX_V3: constant(bytes8) = 0x0300020000000000        # version, key type ECDSA P-256, TEE type
TDX_V4: constant(bytes8) = 0x0400020081000000
TDX_V5: constant(bytes8) = 0x0500020081000000
NAMED_TD10: constant(bytes6) = 0x020048020000         # type 2, 584 bytes
NAMED_TD15: constant(bytes6) = 0x030088020000         # type 3, 648 bytes
# TD attributes in the order of their bytes, lowest first: bits 16, 18 to 22, 27, 28, 30, 31, 62 and 63 may be set. Not those
# for debugging and profiling (0 to 7), migration (29) and an extended service TD (17), nor reserved ones.
TD_ATTRIBUTES: constant(uint256) = 138366666408128
SEPT_VE_DISABLE: constant(uint256) = 1 << 36
SGX: constant(uint256) = 384
TD10: constant(uint256) = 584
TD15: constant(uint256) = 648
INTEL_QE: constant(bytes16) = 0x939a7233f79c4ca9940a0db3957f0607


@internal
@pure
def _read(quote: Bytes[702]) -> IAttestationRegistry.Claims:
    """
    @notice Claims of a quote. Reverts for debuggable enclaves and for TDs under a service TD.
    @return Claims without platform and PCK key, which the certificate names.
    """
    assert len(quote) >= HEADER + SGX, "attestation: quote too short"
    assert convert(slice(quote, 12, 16), bytes16) == INTEL_QE, "attestation: QE vendor not Intel"
    kind: bytes8 = convert(slice(quote, 0, 8), bytes8)
    body: uint256 = HEADER
    size: uint256 = SGX
    if kind == TDX_V4:
        size = TD10
    elif kind == TDX_V5:
        body = HEADER_V5
        named: bytes6 = convert(slice(quote, HEADER, 6), bytes6)
        assert named == NAMED_TD10 or named == NAMED_TD15, "attestation: unknown TD report"
        size = TD15 if named == NAMED_TD15 else TD10
    else:
        assert kind == SGX_V3, "attestation: unknown quote format"
    assert len(quote) == body + size, "attestation: wrong quote length"
    if kind == SGX_V3:
        return self._enclave(quote)
    if size == TD15:
        bound: bool = (
            extract32(quote, body + 600) != empty(bytes32) or extract32(quote, body + 616) != empty(bytes32)
        )
        assert not bound, "attestation: service TD bound"
    return self._trust_domain(quote, body)


@internal
@pure
def _enclave(quote: Bytes[702]) -> IAttestationRegistry.Claims:
    assert (extract32(quote, 96, output_type=uint256) >> 249) & 1 == 0, "attestation: debug enclave"
    # CONFIGID and CONFIGSVN: the host chooses them, and the workload id does not say them
    configured: bool = (
        extract32(quote, 240) != empty(bytes32)
        or extract32(quote, 272) != empty(bytes32)
        or convert(slice(quote, 308, 2), bytes2) != 0x0000
    )
    assert not configured, "attestation: enclave is configured"
    # attributes and MRENCLAVE, MRSIGNER, product and SVN
    fields: Bytes[88] = concat(0x00000000, slice(quote, 96, 48), slice(quote, 176, 32), slice(quote, 304, 4))
    return self._claims(quote, keccak256(fields), 368)


@internal
@pure
def _trust_domain(quote: Bytes[702], body: uint256) -> IAttestationRegistry.Claims:
    # MRSIGNERSEAM and SEAM attributes: zero for Intel's module in production
    module: bool = (
        extract32(quote, body + 64) == empty(bytes32) and extract32(quote, body + 88) == empty(bytes32)
    )
    assert module, "attestation: not Intel's TDX module"
    attributes: uint256 = extract32(quote, body + 120, output_type=uint256) >> 192
    assert attributes >> 56 == 0, "attestation: debug TD"
    assert attributes & SEPT_VE_DISABLE != 0, "attestation: SEPT_VE_DISABLE clear"
    assert attributes & ~TD_ATTRIBUTES == 0, "attestation: TD attribute refused"
    # MROWNER and MROWNERCONFIG: the host chooses them, and the workload id does not say them
    owned: bool = (
        extract32(quote, body + 232) != empty(bytes32)
        or extract32(quote, body + 264) != empty(bytes32)
        or extract32(quote, body + 296) != empty(bytes32)
    )
    assert not owned, "attestation: TD has an owner"
    # TD attributes, XFAM, MRTD and config id, RTMR0 to RTMR2
    fields: Bytes[260] = concat(0x81000000, slice(quote, body + 120, 112), slice(quote, body + 328, 144))
    return self._claims(quote, keccak256(fields), body + 520)


@internal
@pure
def _claims(quote: Bytes[702], workload: bytes32, report_data: uint256) -> IAttestationRegistry.Claims:
    return IAttestationRegistry.Claims(
        workload=workload,
        platform=empty(bytes32),
        pck=empty(bytes32),
        quote=sha256(quote),
        binding=extract32(quote, report_data),
        extra=extract32(quote, report_data + 32),
    )


@internal
@pure
def _check_qe(report: bytes32[12], signer: bytes32, product: uint16, min_svn: uint16):
    """
    @notice Check the QE's identity: a PCK key certifies any enclave of its platform, and only the report names it.
    """
    assert convert(report[1], uint256) & (2 << 120) == 0, "attestation: debug QE"
    assert report[4] == signer, "attestation: wrong QE signer"
    numbers: uint256 = convert(report[8], uint256)
    assert self._number(numbers >> 240) == convert(product, uint256), "attestation: wrong QE product"
    svn: uint256 = self._number((numbers >> 224) & 65535)
    assert svn >= convert(min_svn, uint256), "attestation: QE too old"


@internal
@pure
def _number(little: uint256) -> uint256:
    return (little >> 8) | ((little & 255) << 8)


@internal
@pure
def _check_key(report: bytes32[12], key: bytes32[2], auth: Bytes[128]):
    """
    @notice The quoting enclave certifies the attestation key by its report data.
    """
    certified: bytes32 = sha256(concat(key[0], key[1], auth))
    assert report[10] == certified and report[11] == empty(bytes32), "attestation: key not certified"
