"""Collateral: its canonical form, and the cache, which renews it, verifies it, and works while the source is down."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from earnest.attestation.collateral_cache import (
    MARGIN_S,
    Collateral,
    CollateralCache,
    CollateralError,
    CollateralUnavailable,
    canonical_collateral,
    collateral_digest,
    platform_name,
    read_collateral,
)
from earnest.attestation.formats.collateral import MAX_COLLATERAL_BYTES
from earnest.attestation.prover.simulated import DAY, SimulatedAttester, SimulatedVendor
from tests.attestation.vectors import VECTORS, read

START = 1_767_225_600
NOW = START + DAY
VENDOR = SimulatedVendor(made=START)
QUOTE = SimulatedAttester(VENDOR).quote(bytes(64)).quote


class Service:
    """Answers with `answer`, or fails with it, and counts how often it was asked."""

    def __init__(self, answer: bytes | BaseException) -> None:
        self.answer, self.asked = answer, 0

    async def __call__(self, quote: bytes) -> bytes:
        assert quote == QUOTE
        self.asked += 1
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def signed(days: int = 30, **more: Any) -> bytes:
    return VENDOR.collateral(expires=START + days * DAY, **more)


@pytest.fixture
def service() -> Service:
    return Service(signed())


@pytest.fixture
def cache(tmp_path: Path, service: Service) -> CollateralCache:
    return CollateralCache(tmp_path / "collateral", service, root=VENDOR.root_der)


def ask(cache: CollateralCache, now: int = NOW) -> Collateral:
    return asyncio.run(cache.collateral(QUOTE, now))


# Canonical form


def test_layout_does_not_change_the_digest_and_every_value_does() -> None:
    canonical = canonical_collateral(signed())
    document = json.loads(canonical)
    assert canonical_collateral(json.dumps(document, indent=3).encode()) == canonical
    assert collateral_digest(canonical) == sha256(canonical).digest()
    for name in document:
        assert collateral_digest(json.dumps({**document, name: "x"}).encode()) != collateral_digest(canonical)


def test_a_chain_that_would_override_the_quotes_is_no_part_of_it() -> None:
    overriding = json.dumps({**json.loads(signed()), "pck_certificate_chain": "mine"}).encode()
    assert canonical_collateral(overriding) == canonical_collateral(signed())


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"more": "x"}, "unknown field 'more'"), ({"tcb_info": 1}, "tcb_info is not a string")],
)
def test_fields_are_exactly_the_known_ones(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(CollateralError, match=reason):
        canonical_collateral(json.dumps({**json.loads(signed()), **change}).encode())


def test_large_collateral_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(CollateralError, match="larger than"):
        canonical_collateral(b" " * (MAX_COLLATERAL_BYTES + 1))
    swollen = json.dumps({**json.loads(signed()), "pck_crl": "\x7f" * (MAX_COLLATERAL_BYTES // 2)})
    with pytest.raises(CollateralError, match="larger than"):
        canonical_collateral(swollen.replace("\x7f", "é").encode())


@pytest.mark.parametrize("name", ["P01", "P10", "P12", "P13"])
def test_dates_and_numbers_of_real_collateral_are_read(name: str) -> None:
    entries = json.loads(read("index.json"))
    entry = next(entry for entry in entries["vectors"] if entry["id"] == name)
    facts = entries["collateral"][Path(entry["collateral"]).stem]
    found = read_collateral(VECTORS[name].collateral)
    assert (found.evaluation_number, found.expires) == (
        min(facts["tcb_eval"], facts["qe_eval"]),
        facts["valid_until"],
    )


NO_ZONE = (
    '{"issueDate": "2026-01-01T00:00:00", "nextUpdate": "2026-01-01T00:00:00", "tcbEvaluationDataNumber": 1}'
)


@pytest.mark.parametrize("name", ["tcb_info", "qe_identity", "pck_crl", "root_ca_crl"])
@pytest.mark.parametrize("value", ["", "{}", "00", "[1]", '{"nextUpdate": 7}', NO_ZONE])
def test_a_part_that_can_not_be_read_is_a_clear_error(name: str, value: str) -> None:
    with pytest.raises(CollateralError, match="collateral: "):
        read_collateral(json.dumps({**json.loads(signed()), name: value}).encode())


def test_a_revocation_list_of_no_known_version_is_a_clear_error() -> None:
    document = json.loads(signed())
    assert "020101" in document["pck_crl"]
    document["pck_crl"] = document["pck_crl"].replace("020101", "020109", 1)
    with pytest.raises(CollateralError, match="InvalidVersion"):
        read_collateral(json.dumps(document).encode())


# Cache


def test_it_is_fetched_once_and_kept_over_a_restart(tmp_path: Path, service: Service) -> None:
    for _ in range(3):
        found = ask(CollateralCache(tmp_path, service, root=VENDOR.root_der))
        assert (found.data, found.expires, found.note) == (signed(), START + 30 * DAY, "")
    assert service.asked == 1
    assert [path.name for path in tmp_path.iterdir()] == [f"{platform_name(QUOTE)}.json"]


def test_it_is_renewed_before_it_ends(tmp_path: Path, service: Service) -> None:
    cache = CollateralCache(tmp_path, service, root=VENDOR.root_der, max_age_s=365 * DAY)
    ask(cache)
    service.answer = signed(60)
    last = START + 30 * DAY - MARGIN_S
    assert ask(cache, now=last).expires == START + 30 * DAY
    assert ask(cache, now=last + 1).expires == START + 60 * DAY
    assert service.asked == 2


def test_it_is_asked_for_again_after_a_day(cache: CollateralCache, service: Service) -> None:
    """A higher evaluation number counts at once, however long the lower one is still signed for."""
    ask(cache)
    service.answer = signed(evaluation=101)
    assert ask(cache, NOW + DAY - 1).evaluation_number == 100
    assert ask(cache, NOW + DAY).evaluation_number == 101


@pytest.mark.parametrize(
    ("failure", "cause"),
    [
        (OSError("no route"), "the collateral service failed: no route"),
        (RuntimeError("HTTP 503"), "the collateral service failed: HTTP 503"),
        (b"<html>", "answered no collateral: collateral: not JSON"),
        (signed().replace(b"UpToDate", b"OutOfDate"), "does not verify: signatures"),
        (SimulatedVendor(b"another").collateral(), "does not verify: signatures"),
        (signed(1), "does not verify: freshness"),
    ],
    ids=["network", "service", "nonsense", "altered", "another signer", "expired"],
)
def test_verified_collateral_is_kept_while_the_source_fails(
    cache: CollateralCache, service: Service, failure: bytes | BaseException, cause: str
) -> None:
    service.answer = failure
    with pytest.raises(CollateralUnavailable, match=cause):
        ask(cache, NOW + DAY)
    service.answer = signed()
    kept = ask(cache, NOW)
    service.answer = failure
    found = ask(cache, NOW + DAY)
    assert found.data == kept.data
    assert cause in found.note
    assert found.note.endswith("the cached collateral stays valid for 672 h 0 min")
    with pytest.raises(CollateralUnavailable):
        ask(cache, START + 30 * DAY)


def test_an_older_answer_does_not_replace_a_newer_one(cache: CollateralCache, service: Service) -> None:
    ask(cache)
    service.answer = signed(40, evaluation=99)
    found = ask(cache, NOW + DAY)
    assert found.evaluation_number == 100
    assert found.note.startswith("the service answered with older collateral; ")


def test_collateral_that_revokes_the_platform_is_kept(cache: CollateralCache, service: Service) -> None:
    """A refusal is no reason to stay with the collateral of before."""
    ask(cache)
    service.answer = signed(40, revoked_platforms=[0])
    assert ask(cache, NOW + DAY).expires == START + 40 * DAY


def test_a_silent_service_is_given_up(tmp_path: Path) -> None:
    async def silent(quote: bytes) -> bytes:
        await asyncio.sleep(60)
        return b""

    cache = CollateralCache(tmp_path, silent, root=VENDOR.root_der, timeout_s=0.01)
    with pytest.raises(CollateralUnavailable, match=r"did not answer in 0\.01 s"):
        ask(cache)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"asked_at": 1, "collateral": {}}'])
def test_a_broken_file_is_fetched_again(tmp_path: Path, service: Service, content: bytes) -> None:
    (tmp_path / f"{platform_name(QUOTE)}.json").write_bytes(content)
    assert ask(CollateralCache(tmp_path, service, root=VENDOR.root_der)).data == signed()


def test_two_that_ask_at_once_fetch_once(cache: CollateralCache, service: Service) -> None:
    async def both() -> None:
        first, second = await asyncio.gather(cache.collateral(QUOTE, NOW), cache.collateral(QUOTE, NOW))
        assert first == second

    asyncio.run(both())
    assert service.asked == 1


def test_each_platform_family_has_its_own_file() -> None:
    names = {platform_name(VECTORS[name].quote) for name in ("P01", "P07", "P12", "S01")}
    assert names == {
        "tdx-b0c06f000000-platform",
        "tdx-00806f050000-platform",
        "sgx-00a067110000-processor",
        "tdx-53494d000001-platform",
    }
    with pytest.raises(CollateralUnavailable, match="does not name its platform"):
        platform_name(b"no quote")
