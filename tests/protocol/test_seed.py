from collections import Counter
from hashlib import sha256
from itertools import islice

from eth_abi.abi import encode
from eth_hash.auto import keccak
from hypothesis import given
from hypothesis import strategies as st

from earnest.protocol.seed import _below, fallback_seed, round_seed, shuffled, tagged, words

seeds = st.binary(min_size=32, max_size=32)


def test_round_seed_is_over_abi_encode():
    block_hash = b"\7" * 32
    randomness = b"\x08" * 32
    assert round_seed(block_hash, randomness, 3, 4) == keccak(
        encode(["bytes32", "bytes32", "uint256", "uint256"], [block_hash, randomness, 3, 4])
    )
    assert fallback_seed(3, 4) == keccak(encode(["uint256", "uint256"], [3, 4]))


def test_a_seed_of_a_purpose_is_over_its_tag():
    seed = b"\7" * 32
    tag = keccak(b"earnest/held-out/v1")
    assert tagged(seed, "held-out") == keccak(encode(["bytes32", "bytes32"], [tag, seed]))


def test_words_are_little_endian_digests_of_a_counter():
    stream = b"".join(word.to_bytes(8, "little") for word in islice(words(b"seed"), 8))
    assert stream == sha256(b"seed" + bytes(8)).digest() + sha256(b"seed" + b"\1" + bytes(7)).digest()


def test_biased_words_are_rejected():
    top = 2**64 - 6
    assert _below(10, iter([top, 2**64 - 1, top - 1])) == 9
    assert _below(1, iter([2**64 - 1])) == 0


@given(st.lists(st.integers(), max_size=50), seeds)
def test_a_shuffle_is_a_permutation(ids, seed):
    before = list(ids)
    assert sorted(shuffled(ids, seed)) == sorted(ids)
    assert ids == before


@given(st.integers(0, 50), st.integers(0, 60), seeds)
def test_the_first_of_a_shuffle_need_not_the_rest(n, count, seed):
    assert shuffled(range(n), seed, count) == shuffled(range(n), seed)[:count]


def test_forward_fisher_yates_word_by_word():
    pool, stream = list("abcde"), words(b"seed")
    for i in range(4):
        j = i + next(stream) % (5 - i)
        pool[i], pool[j] = pool[j], pool[i]
    assert [*map(ord, pool)] == shuffled([*map(ord, "abcde")], b"seed")


def test_all_orders_are_equally_likely():
    orders = Counter(tuple(shuffled(range(3), i.to_bytes(32, "big"))) for i in range(6_000))
    assert len(orders) == 6
    assert all(abs(count - 1_000) < 5 * 1_000**0.5 for count in orders.values())


def test_a_known_shuffle_stays_what_it_is():
    assert shuffled(range(10), bytes(32)) == [8, 1, 5, 7, 3, 2, 4, 0, 9, 6]
