# pragma version 0.4.3
# pragma evm-version cancun
# pragma nonreentrancy on
"""
@title Admission
@license MIT
@notice Proofs that an account is on the sponsor's list for a role. Protocol sections 3 and 13.
"""


@internal
@pure
def _admitted(root: bytes32, account: address, role: uint256, proof: DynArray[bytes32, 32]) -> bool:
    """
    @dev Leaves are hashed twice, so no inner node can pass for one; pairs are sorted.
    """
    node: bytes32 = keccak256(abi_encode(keccak256(abi_encode(account, role))))
    for sibling: bytes32 in proof:
        if convert(node, uint256) < convert(sibling, uint256):
            node = keccak256(concat(node, sibling))
        else:
            node = keccak256(concat(sibling, node))
    return node == root
