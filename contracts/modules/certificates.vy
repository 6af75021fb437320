# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Certificates
@license MIT
@notice Finds key and PPID in a PCK certificate's signed bytes, without reading DER. Protocol section 11.
@dev Each is found by the bytes directly before it, which DER puts before nothing else: the header of a P-256 key, and
     the PPID's OID in Intel's extension. The CA signed all of it; it signs revocation lists too, which hold neither.
"""

PPID_PREFIX: constant(bytes16) = 0x301e060a2a864886f84d010d01010410
SPKI_PREFIX: constant(bytes27) = 0x3059301306072a8648ce3d020106082a8648ce3d03010703420004


@internal
@pure
def _key(tbs: Bytes[1536], at: uint256) -> bytes32[2]:
    """
    @return x, y of the certified key.
    """
    assert at >= 27 and at < len(tbs) and at + 64 <= len(tbs), "attestation: PCK key outside"
    assert convert(slice(tbs, at - 27, 27), bytes27) == SPKI_PREFIX, "attestation: no PCK key there"
    return [extract32(tbs, at), extract32(tbs, at + 32)]


@internal
@pure
def _platform(tbs: Bytes[1536], at: uint256) -> bytes32:
    """
    @return keccak256 of the PPID. Not optional: omitting it would evade the limits per platform.
    """
    assert at >= 16 and at < len(tbs) and at + 16 <= len(tbs), "attestation: PPID outside"
    assert convert(slice(tbs, at - 16, 16), bytes16) == PPID_PREFIX, "attestation: no PPID there"
    return keccak256(slice(tbs, at, 16))
