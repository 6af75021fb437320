"""The P-256 precompile (EIP-7951): the embedded chain's gives the answers and takes the gas of anvil's native one.

The edge cases are those of Wycheproof's and the EIP's own lists, built here from the curve's arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from web3.providers import BaseProvider

from earnest.deploy.devnet.p256 import FIELD, GAS, ORDER, verifies
from earnest.deploy.devnet.server import DevnetProvider
from earnest.deploy.plan import create_address
from tests.anvil import anvil
from tests.deploy.chain import ask, fresh_devnet, over_http, sponsor
from tests.deploy.chain import signed as signed_transaction

ADDRESS = "0x" + "100".rjust(40, "0")
YES, NO = "0x" + "1".rjust(64, "0"), "0x"
B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
Point = tuple[int, int] | None
G: Point = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
SECRET, DIGEST = 0xD1E, 0xC0FFEE << 200


@pytest.fixture(scope="module", params=["embedded", "anvil"])
def provider(request: pytest.FixtureRequest) -> Iterator[BaseProvider]:
    if request.param == "embedded":
        yield DevnetProvider(fresh_devnet())
    else:
        with anvil() as url:
            yield over_http(url)


# The curve, by the book: y² = x³ - 3x + b over FIELD; None is the point at infinity.


def add(p: Point, q: Point) -> Point:
    if p is None or q is None:
        return p or q
    if p[0] == q[0] and (p[1] + q[1]) % FIELD == 0:
        return None
    slope = (
        (3 * p[0] * p[0] - 3) * pow(2 * p[1], -1, FIELD)
        if p == q
        else (q[1] - p[1]) * pow(q[0] - p[0], -1, FIELD)
    )
    x = (slope * slope - p[0] - q[0]) % FIELD
    return x, (slope * (p[0] - x) - p[1]) % FIELD


def times(k: int, p: Point) -> Point:
    total: Point = None
    for bit in f"{k % ORDER:b}":
        total = add(total, total)
        if bit == "1":
            total = add(total, p)
    return total


def minus(p: Point) -> Point:
    return p and (p[0], -p[1] % FIELD)


def point_at(x: int) -> Point:
    """A point with this x; None if the curve has none."""
    square = (x**3 - 3 * x + B) % FIELD
    y = pow(square, (FIELD + 1) // 4, FIELD)
    return (x, y) if y * y % FIELD == square else None


def first_point(start: int, stop: int) -> tuple[int, int]:
    return next(point for x in range(start, stop) if (point := point_at(x)))


def signed(secret: int, digest: int, nonce: int = 0xABBA) -> tuple[int, int]:
    point = times(nonce, G)
    assert point
    r = point[0] % ORDER
    return r, pow(nonce, -1, ORDER) * (digest + r * secret) % ORDER


def packed(*words: int) -> bytes:
    return b"".join(word.to_bytes(32) for word in words)


def coordinates(point: Point) -> tuple[int, int]:
    assert point
    return point


R, S = signed(SECRET, DIGEST)
X, Y = coordinates(times(SECRET, G))
GOOD = packed(DIGEST, R, S, X, Y)

KNOWN = bytes.fromhex(  # from the tests of the first implementations of RIP-7212
    "4cee90eb86eaa050036147a12d49004b6b9c72bd725d39d4785011fe190f0b4d"
    "a73bd4903f0ce3b639bbbf6e8e80d16931ff4bcf5993d58468e8fb19086e8cac"
    "36dbcd03009df8c59286b162af3bd7fcc0450c9aa81be5d10d312af6c66b1d60"
    "4aebd3099c618202fcfe16ae7770b0c49ab5eadf74b754204a3bb6060e44eff3"
    "7618b065f9832de4ca6ca971a7a1adc826d0f7c00181a5fb2ddf79ae00b4e10e"
)


def key_for(r: int, s: int, digest: int, nonce_point: Point) -> tuple[int, int]:
    """The public key under which (r, s) is a signature of `digest` with this nonce point: (s R - h G) / r."""
    return coordinates(times(pow(r, -1, ORDER), add(times(s, nonce_point), minus(times(digest, G)))))


def large_x() -> tuple[int, ...]:
    """The nonce point's x lies between the order and the field: r is x - n."""
    point = first_point(ORDER, ORDER + 1_000)
    r = point[0] - ORDER
    return DIGEST, r, 5, *key_for(r, 5, DIGEST, point)


def x_beyond_the_order() -> tuple[int, ...]:
    """As above, with r given as x itself."""
    digest, r, s, x, y = large_x()
    return digest, r + ORDER, s, x, y


def nonce_at_infinity() -> tuple[int, ...]:
    """u1 G + u2 Q is the point at infinity, for any s."""
    return DIGEST, R, 7, *coordinates(times(-DIGEST * pow(R, -1, ORDER), G))


SMALL_X = first_point(1, 100)
"""A point whose x, plus the field's prime, still fits into a word."""


def under_small_x(shift: int) -> tuple[int, ...]:
    """A signature that is good under SMALL_X: u1 and u2 chosen first."""
    nonce_point = coordinates(add(times(3, G), times(5, SMALL_X)))
    r = nonce_point[0] % ORDER
    s = r * pow(5, -1, ORDER) % ORDER
    return 3 * s % ORDER, r, s, SMALL_X[0] + shift, SMALL_X[1]


ACCEPTED = {
    "a known signature": KNOWN,
    "one made here": GOOD,
    "high s": packed(DIGEST, R, ORDER - S, X, Y),
    "digest zero": packed(0, *signed(SECRET, 0), X, Y),
    "digest beyond the order": packed(2**256 - 1, *signed(SECRET, 2**256 - 1), X, Y),
    "digest reduced": packed(2**256 - 1 - ORDER, *signed(SECRET, 2**256 - 1), X, Y),
    "s is one": packed(DIGEST, R, 1, *key_for(R, 1, DIGEST, times(0xABBA, G))),
    "s is order - 1": packed(DIGEST, R, ORDER - 1, *key_for(R, ORDER - 1, DIGEST, times(0xABBA, G))),
    "key is the generator": packed(DIGEST, *signed(1, DIGEST), *coordinates(G)),
    "key is minus the generator": packed(DIGEST, *signed(ORDER - 1, DIGEST), *coordinates(minus(G))),
    "nonce is one": packed(DIGEST, *signed(SECRET, DIGEST, 1), X, Y),
    "doubling inside": packed(DIGEST, *signed(1, DIGEST, 2 * DIGEST), *coordinates(G)),
    "nonce point's x beyond the order": packed(*large_x()),
    "key with a small x": packed(*under_small_x(0)),
}

REFUSED = {
    "no input": b"",
    "a byte short": GOOD[:-1],
    "a byte long": GOOD + b"\0",
    "a word short": GOOD[:-32],
    "twice": GOOD + GOOD,
    "all zero": bytes(160),
    "all ones": b"\xff" * 160,
    "r is zero": packed(DIGEST, 0, S, X, Y),
    "s is zero": packed(DIGEST, R, 0, X, Y),
    "r is the order": packed(DIGEST, ORDER, S, X, Y),
    "s is the order": packed(DIGEST, R, ORDER, X, Y),
    "r is beyond the order": packed(*x_beyond_the_order()),
    "s plus the order": packed(DIGEST, 2**256 - 1, S, X, Y),
    "another digest": packed(DIGEST + 1, R, S, X, Y),
    "another r": packed(DIGEST, R + 1, S, X, Y),
    "another s": packed(DIGEST, R, S + 1, X, Y),
    "negative r": packed(DIGEST, ORDER - R, S, X, Y),
    "r and s swapped": packed(DIGEST, S, R, X, Y),
    "x and y swapped": packed(DIGEST, R, S, Y, X),
    "the opposite key": packed(DIGEST, R, S, X, FIELD - Y),
    "key off the curve": packed(DIGEST, R, S, X, Y + 1),
    "key at infinity": packed(DIGEST, R, S, 0, 0),
    "x is zero off the curve": packed(DIGEST, R, S, 0, 1),
    "x is the field": packed(DIGEST, R, S, FIELD, Y),
    "y is the field": packed(DIGEST, R, S, X, FIELD),
    "x plus the field": packed(*under_small_x(FIELD)),
    "nonce point at infinity": packed(*nonce_at_infinity()),
    "little-endian": b"".join(GOOD[at : at + 32][::-1] for at in range(0, 160, 32)),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_good_signatures_give_one(provider: BaseProvider, case: str) -> None:
    assert answer(provider, ACCEPTED[case]) == YES


@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_gives_nothing(provider: BaseProvider, case: str) -> None:
    assert answer(provider, REFUSED[case]) == NO


def answer(provider: BaseProvider, data: bytes) -> str:
    return ask(provider, "eth_call", {"to": ADDRESS, "data": "0x" + data.hex()}, "latest")


@pytest.mark.parametrize("data", [GOOD, REFUSED["all zero"], b""], ids=["good", "bad", "empty"])
def test_it_always_takes_its_gas(provider: BaseProvider, data: bytes) -> None:
    """21,000 of a transaction and its data (EIP-7623's floor is below), and the precompile's own."""
    call = {"from": sponsor.address, "to": ADDRESS, "data": "0x" + data.hex()}
    needed = 21_000 + 4 * data.count(0) + 16 * (len(data) - data.count(0)) + GAS
    calls = {gas: {**call, "gas": hex(gas)} for gas in (needed, needed - 1)}
    assert ask(provider, "eth_call", calls[needed], "latest") == answer(provider, data)
    short = provider.make_request("eth_call", [calls[needed - 1], "latest"])  # pyright: ignore
    assert "error" in short


def test_no_changed_bit_is_accepted() -> None:
    assert verifies(GOOD)
    for at in range(8 * len(GOOD)):
        changed = (int.from_bytes(GOOD) ^ 1 << at).to_bytes(160)
        assert not verifies(changed), at


def test_a_contract_calls_it_at_a_warm_address() -> None:
    """That costs 100, not 2,600: precompiles are warm from the start (EIP-2929)."""
    devnet = fresh_devnet()
    copy, call = (
        "60a06000600037",
        "6020600060a06000610100",
    )  # calldatacopy(0, 0, 160); 0x100, in 0..160, out 0..32
    code = bytes.fromhex(
        f"{copy}5a{call}5afa505a900360205260406000f3"
    )  # returns the output and the gas of the call
    creation = bytes.fromhex(f"60{len(code):02x}600c60003960{len(code):02x}6000f3") + code
    devnet.send(signed_transaction(sponsor, 0, to="", value=0, data=creation, gas=200_000))
    call_it = {"to": create_address(sponsor.address, 0), "data": "0x" + GOOD.hex()}
    output = bytes.fromhex(ask(DevnetProvider(devnet), "eth_call", call_it, "latest")[2:])
    assert output[:32] == packed(1)
    assert 0 <= int.from_bytes(output[32:]) - GAS - 100 <= 40
