"""Registering a key against the real contracts: what is sent, what is published, and a trainer killed anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from eth_keys.datatypes import Signature

from earnest.attestation.evidence_file import MAX_EVIDENCE_BYTES, EvidenceFile
from earnest.attestation.formats.quote import parse_quote
from earnest.attestation.policy_file import PolicyFile
from earnest.attestation.prover.attester import AttesterError, Quoted
from earnest.attestation.prover.key_registration import KeyScope, RegistrationError, prepare_registration
from earnest.attestation.prover.simulated import SimulatedAttester, SimulatedVendor
from earnest.attestation.roots import INTEL_ROOT_ID
from earnest.attestation.verifier.registration import RegistrationFacts, verify_registration
from earnest.base.errors import Reverted
from earnest.client.storage.objects import ObjectStore
from earnest.client.trainer.enclave_keys import RETRY_S, EnclaveKeys
from earnest.demo.world import World
from tests.client.world import make_world

VENDOR = SimulatedVendor()
HONEST = SimulatedAttester(VENDOR, b"the training code")
TTL_S = 40_000
POLICY = PolicyFile.from_quotes([parse_quote(HONEST.quote(bytes(64)).quote)], ttl_s=TTL_S)
MANIFEST = b"\x4d" * 32
TRAINERS = tuple(f"trainer-{index}" for index in range(1, 20))


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """An attested run whose keys outlive it; each test has trainers of its own."""
    setup: dict[str, Any] = {
        "attacks": ("none",),
        "validators": 1,
        "idle": ("trainer-0", "validator-0"),
        "spare": TRAINERS,
        "policy": POLICY,
        "params": {"trainer_limit": 1 + len(TRAINERS)},
    }
    with make_world(tmp_path_factory.mktemp("world"), **setup) as world:
        for name in TRAINERS:
            world.take_seat(name)
        yield world


@pytest.fixture(scope="module")
def names() -> Iterator[str]:
    return iter(TRAINERS)


@pytest.fixture
def trainer(names: Iterator[str]) -> str:
    """A trainer without a key, on a machine of its own."""
    return next(names)


@pytest.fixture
def neighbour(names: Iterator[str]) -> str:
    """Another one."""
    return next(names)


def machine(name: str) -> SimulatedAttester:
    return SimulatedAttester(VENDOR, HONEST.code, platform=TRAINERS.index(name))


def draws(seed: str) -> Callable[[int], bytes]:
    from hashlib import sha256

    count = iter(range(1_000))
    return lambda size: sha256(f"{seed}/{next(count)}".encode()).digest()[:size]


def keeper(
    world: World, name: str, deadly: Callable[[str, Any], Any] = lambda part, inner: inner, **changes: Any
) -> EnclaveKeys:
    """The account's keeper as a process that has just started has it."""
    account = world.open(name)
    parts: dict[str, Any] = {
        "scope": KeyScope(
            world.chain.chain_id, world.contracts.registry.address, world.run, world.address(name)
        ),
        "registry": world.contracts.registry,
        "runs": world.contracts.runs,
        "attester": machine(name),
        "policy": POLICY,
        "folder": account.folder / "enclave",
        "store": account.public,
        "journal": account.journal,
        "outbox": account.outbox,
        "random": draws(f"{name}/{world.devnet.now()}/{len(list(account.folder.rglob('*')))}"),
    }
    return EnclaveKeys(**{part: deadly(part, inner) for part, inner in {**parts, **changes}.items()})


def signer_of(signature: bytes, statement: bytes) -> str:
    r, vs = int.from_bytes(signature[:32]), int.from_bytes(signature[32:])
    recovered = Signature(vrs=(vs >> 255, r, vs & ((1 << 255) - 1)))
    return recovered.recover_public_key_from_msg_hash(statement).to_checksum_address()


def registered(world: World, receipt: Any) -> dict[str, Any]:
    events = [world.contracts.registry.abi.decode_log(log) for log in receipt.logs]
    return next(event[1] for event in events if event is not None and event[0] == "KeyRegistered")


def test_the_contract_recovers_the_registered_key_from_a_signature(world: World, trainer: str) -> None:
    enclave = keeper(world, trainer)
    head = world.chain.head()
    assert enclave.due(head)
    assert enclave.sign(0, MANIFEST, world.devnet.now(), head) == b""
    receipt = enclave.renew(head)
    assert receipt is not None
    head, mined = world.chain.head(), world.chain.block(receipt.block_number)
    live = enclave.live(head)
    assert live is not None and live.expiry == mined.time + TTL_S
    assert not enclave.due(head)
    signature = enclave.sign(0, MANIFEST, world.devnet.now(), head)
    assert signer_of(signature, enclave.scope.statement(0, MANIFEST)) == live.address
    assert enclave.sign(0, MANIFEST, live.expiry - 1, head) != b""
    assert enclave.sign(0, MANIFEST, live.expiry, head) == b""


def test_every_validator_accepts_the_published_evidence(world: World, trainer: str) -> None:
    enclave = keeper(world, trainer)
    challenge = world.contracts.registry.challenge(world.run, world.address(trainer), world.chain.head())
    receipt = enclave.renew(world.chain.head())
    assert receipt is not None
    event = registered(world, receipt)
    evidence = EvidenceFile.read(
        world.account(trainer).public.get(event["evidence_root"], MAX_EVIDENCE_BYTES)
    )
    found = verify_registration(
        evidence,
        RegistrationFacts(
            chain_id=world.chain.chain_id,
            registry=world.contracts.registry.address,
            run=world.run,
            trainer=world.address(trainer),
            key=event["key"],
            challenge=challenge[1],
            workload=event["workload"],
            root_id=event["root_id"],
            platform=event["platform"],
            collateral_digest=event["collateral_digest"],
            block_time=world.chain.block(receipt.block_number).time,
        ),
        POLICY.policy,
        POLICY.document,
    )
    assert found.policy_accepted, found.reason
    assert event["root_id"] == VENDOR.root_id
    assert event["challenge_block"] == challenge[0]


def test_a_key_is_renewed_by_another_one_before_it_expires(world: World, trainer: str) -> None:
    enclave = keeper(world, trainer)
    enclave.renew(world.chain.head())
    first = enclave.live(world.chain.head())
    assert first is not None
    world.devnet.travel(first.expiry - TTL_S // 4)
    assert not enclave.due(world.chain.head())
    world.devnet.travel(first.expiry - TTL_S // 4 + 1)
    assert enclave.due(world.chain.head())
    enclave = keeper(world, trainer)  # restarted
    assert enclave.renew(world.chain.head()) is not None
    second = enclave.live(world.chain.head())
    assert second is not None and second.address != first.address and second.expiry > first.expiry
    signature = enclave.sign(3, MANIFEST, world.devnet.now(), world.chain.head())
    assert signer_of(signature, enclave.scope.statement(3, MANIFEST)) == second.address


class Deadly:
    """Passes everything on to `inner`, and ends the process before or after the method `at`."""

    def __init__(self, inner: Any, at: str, after: bool) -> None:
        self._inner, self._at, self._after = inner, at, after

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name != self._at:
            return value

        def deadly(*arguments: Any, **named: Any) -> None:
            if self._after:
                value(*arguments, **named)
            raise Killed

        return deadly


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("where", ["journal.put", "attester.quote", "store.put", "outbox.send"])
def test_a_trainer_killed_anywhere_registers_one_key_once(
    where: str, after: bool, world: World, trainer: str
) -> None:
    account = world.account(trainer)
    part, method = where.split(".")
    inner = {
        "journal": account.journal,
        "attester": HONEST,
        "store": account.public,
        "outbox": account.outbox,
    }[part]
    sent = world.transactions(trainer)
    world.close(trainer)
    killed = keeper(world, trainer)
    reopened = world.account(trainer)
    inner = {
        "journal": reopened.journal,
        "attester": HONEST,
        "store": reopened.public,
        "outbox": reopened.outbox,
    }[part]
    setattr(killed, f"_{part}" if part != "attester" else part, Deadly(inner, method, after))
    with pytest.raises(Killed):
        killed.renew(world.chain.head())
    enclave = keeper(world, trainer)
    head = world.chain.head()
    if enclave.due(head):
        assert enclave.renew(head) is not None
    assert world.transactions(trainer) == sent + 1
    signature = enclave.sign(0, MANIFEST, world.devnet.now(), world.chain.head())
    live = enclave.live(world.chain.head())
    assert live is not None
    assert signer_of(signature, enclave.scope.statement(0, MANIFEST)) == live.address


def test_a_key_whose_file_is_lost_is_replaced(world: World, trainer: str) -> None:
    enclave = keeper(world, trainer)
    enclave.renew(world.chain.head())
    live = enclave.live(world.chain.head())
    for path in (world.account(trainer).folder / "enclave").iterdir():
        path.unlink()
    enclave = keeper(world, trainer)
    assert enclave.due(world.chain.head())
    assert enclave.sign(0, MANIFEST, world.devnet.now(), world.chain.head()) == b""
    assert enclave.renew(world.chain.head()) is not None
    found = enclave.live(world.chain.head())
    assert live is not None and found is not None and found.address != live.address


def test_other_code_is_refused_before_it_costs_anything_and_by_the_chain(world: World, trainer: str) -> None:
    swapped = SimulatedAttester(VENDOR, b"other code")
    sent = world.transactions(trainer)
    with pytest.raises(RegistrationError, match="does not list"):
        keeper(world, trainer, attester=swapped).renew(world.chain.head())
    with pytest.raises(Reverted, match="attestation: "):
        keeper(world, trainer, attester=swapped, check=False).renew(world.chain.head())
    assert world.transactions(trainer) == sent


def test_a_registration_that_failed_is_not_tried_at_every_look(world: World, trainer: str) -> None:
    enclave = keeper(world, trainer, attester=SimulatedAttester(VENDOR, b"other code"))
    head = world.chain.head()
    with pytest.raises(RegistrationError):
        enclave.renew(head)
    assert not enclave.due(head)
    world.devnet.travel(head.time + RETRY_S - 1)
    assert not enclave.due(world.chain.head())
    world.devnet.travel(head.time + RETRY_S)
    assert enclave.due(world.chain.head())


def test_a_quote_made_for_another_key_or_trainer_is_refused_by_the_chain(
    world: World, trainer: str, neighbour: str
) -> None:
    stolen: list[Quoted] = []

    class Replaying:
        kind, root_id = "simulated", VENDOR.root_id

        def quote(self, report_data: bytes) -> Quoted:
            stolen.append(machine(trainer).quote(report_data))
            return stolen[0]

    thief = Replaying()
    assert keeper(world, trainer, attester=thief).renew(world.chain.head()) is not None
    with pytest.raises(Reverted, match="attestation: "):
        keeper(world, neighbour, attester=thief).renew(world.chain.head())


def test_one_machine_does_not_stand_in_for_two_trainers(world: World, trainer: str, neighbour: str) -> None:
    assert keeper(world, trainer).renew(world.chain.head()) is not None
    with pytest.raises(Reverted, match="attestation: "):
        keeper(world, neighbour, attester=machine(trainer)).renew(world.chain.head())
    assert keeper(world, neighbour).renew(world.chain.head()) is not None


PLACE = KeyScope(1337, "0x" + "11" * 20, 1, "0x" + "22" * 20)
KEY = "0x" + "33" * 20
CHALLENGE = (7, b"\x07" * 32)


def test_a_run_pinned_to_intels_root_refuses_a_simulated_machine() -> None:
    quote = parse_quote(HONEST.quote(bytes(64)).quote)
    intel = PolicyFile.from_quotes([quote], root=INTEL_ROOT_ID)
    with pytest.raises(RegistrationError, match=r"SIMULATED.*Intel SGX Root CA"):
        prepare_registration(HONEST, KEY, PLACE, CHALLENGE, intel)


def test_a_debug_machine_is_refused() -> None:
    debug = SimulatedAttester(VENDOR, HONEST.code, debug=True)
    policy = PolicyFile.from_quotes([parse_quote(debug.quote(bytes(64)).quote)])
    with pytest.raises(RegistrationError, match="debug"):
        prepare_registration(debug, KEY, PLACE, CHALLENGE, policy)


class Owned(SimulatedAttester):
    """Its host set MROWNERCONFIG."""

    def _td_report(self, report_data: bytes) -> bytes:
        made = super()._td_report(report_data)
        return made[:280] + b"\1" * 48 + made[328:]


def test_a_machine_configured_by_its_host_is_refused() -> None:
    with pytest.raises(RegistrationError, match="MROWNERCONFIG"):
        prepare_registration(Owned(VENDOR, HONEST.code), KEY, PLACE, CHALLENGE, POLICY)


def test_gpu_evidence_is_over_the_binding_and_hashed_into_the_report_data() -> None:
    nonces: list[bytes] = []

    def collect(nonce: bytes) -> bytes:
        nonces.append(nonce)
        return b"[]"

    made = prepare_registration(HONEST, KEY, PLACE, CHALLENGE, POLICY, gpu=collect)
    assert nonces == [PLACE.binding(KEY, CHALLENGE[1])]
    assert made.quote.report_data == nonces[0] + made.evidence.gpu_digest()
    assert made.evidence.gpu == b"[]"


def test_collateral_is_fetched_where_the_attester_has_none() -> None:
    class Bare:
        kind, root_id = "simulated", VENDOR.root_id

        def quote(self, report_data: bytes) -> Quoted:
            return Quoted(HONEST.quote(report_data).quote)

    with pytest.raises(AttesterError, match="no collateral"):
        prepare_registration(Bare(), KEY, PLACE, CHALLENGE, POLICY)
    collateral = VENDOR.collateral()
    made = prepare_registration(Bare(), KEY, PLACE, CHALLENGE, POLICY, collateral=lambda quote: collateral)
    assert made.evidence.collateral == collateral
    assert ObjectStore("memory:///").put(made.evidence.to_bytes()) == made.registration.evidence_root
