import itertools
from collections.abc import Sequence
from hashlib import sha256
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earnest.protocol.merkle import (
    CHUNK,
    admission_leaf,
    admission_proof,
    admission_root,
    content_leaves,
    content_root,
    leaf_hash,
    node_hash,
    root_of_leaves,
    samples_root,
    verify_admission,
)
from earnest.protocol.run import Role

# The test vectors of the certificate-transparency reference implementation.
RFC_LEAVES = [
    bytes.fromhex(leaf)
    for leaf in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
RFC_ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]

chunks = st.lists(st.binary(max_size=8), max_size=40)


def tree_root(contents: Sequence[bytes]) -> bytes:
    return root_of_leaves([leaf_hash(content) for content in contents])


def rfc_tree(leaves: list[bytes]) -> bytes:
    """MTH of RFC 6962, section 2.1, word for word."""
    n = len(leaves)
    if n == 0:
        return sha256(b"").digest()
    if n == 1:
        return sha256(b"\x00" + leaves[0]).digest()
    k = 1
    while 2 * k < n:
        k *= 2
    return sha256(b"\x01" + rfc_tree(leaves[:k]) + rfc_tree(leaves[k:])).digest()


@pytest.mark.parametrize("n", range(9))
def test_roots_are_those_of_rfc_6962(n):
    assert tree_root(RFC_LEAVES[:n]).hex() == RFC_ROOTS[n]


@given(chunks)
def test_root_follows_the_recursive_definition(leaves):
    assert tree_root(leaves) == rfc_tree(leaves)


def test_a_node_is_never_mistaken_for_a_leaf():
    leaves = [leaf_hash(b"a"), leaf_hash(b"b")]
    assert leaf_hash(leaves[0] + leaves[1]) != node_hash(*leaves)


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 5])
def test_contents_are_cut_into_mebibytes(size):
    data = Random(size).randbytes(size)
    pieces = [data[i : i + CHUNK] for i in range(0, size, CHUNK)]
    assert content_leaves(data) == [leaf_hash(piece) for piece in pieces]
    assert content_root(data) == tree_root(pieces)


@given(st.lists(st.integers(0, CHUNK + 10), max_size=4))
def test_root_does_not_depend_on_how_contents_arrive(sizes):
    data = bytes(sum(sizes))
    at = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    assert content_root(data[a:b] for a, b in itertools.pairwise(at)) == content_root(data)


def test_samples_are_little_endian_words_in_training_order():
    assert samples_root([1, 2]) == content_root(bytes([1, 0, 0, 0, 2, 0, 0, 0]))
    assert samples_root([1, 2]) != samples_root([2, 1])
    assert samples_root(iter([1, 2])) == samples_root((1, 2))


ACCOUNTS = ["0x" + f"{i:040x}" for i in range(1, 20)]


@given(st.lists(st.tuples(st.sampled_from(ACCOUNTS), st.sampled_from(list(Role))), min_size=1))
def test_everyone_admitted_can_prove_it(entries):
    root = admission_root(entries)
    assert root == admission_root(reversed(entries))
    for address, role in entries:
        proof = admission_proof(entries, address, role)
        assert len(proof) <= 32
        assert verify_admission(root, address, role, proof)
        stranger = "0x" + "ff" * 20
        assert not verify_admission(root, stranger, role, proof)


def test_admission_of_a_trainer_is_none_of_a_validator():
    trainers = [(account, Role.TRAINER) for account in ACCOUNTS]
    root = admission_root(trainers)
    proof = admission_proof(trainers, ACCOUNTS[0], Role.TRAINER)
    assert not verify_admission(root, ACCOUNTS[0], Role.VALIDATOR, proof)
    with pytest.raises(KeyError, match="not admitted in role 2"):
        admission_proof(trainers, ACCOUNTS[0], Role.VALIDATOR)


def test_one_admitted_account_needs_no_proof():
    entries = [(ACCOUNTS[0], Role.VALIDATOR)]
    assert admission_root(entries) == admission_leaf(*entries[0])
    assert admission_proof(entries, *entries[0]) == []


def test_nobody_admitted_has_a_zero_root():
    assert admission_root([]) == bytes(32)
