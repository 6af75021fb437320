"""A node that attests: what it signs, what it reveals when something fails, and who is paid for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from earnest.attestation.formats.quote import parse_quote, pck_chain, quote_calldata
from earnest.attestation.policy_file import PolicyFile
from earnest.attestation.prover.attester import Attester, AttesterError, Quoted
from earnest.attestation.prover.enclave_key import EnclaveKey
from earnest.attestation.prover.simulated import SimulatedAttester, SimulatedVendor
from earnest.attestation.roots import INTEL_ROOT_ID
from earnest.base.errors import EndpointDown, Reverted
from earnest.client.chain.blockref import BlockRef
from earnest.client.chain.contracts import EnclaveKey as LiveKey
from earnest.client.run.record import RunRecord
from earnest.client.storage.journal import Journal
from earnest.client.trainer.attested_rounds import AttestedRounds
from earnest.client.trainer.enclave_keys import EnclaveKeys
from earnest.client.trainer.node import TrainerNode
from earnest.demo.world import TRAINER_BOND, World
from earnest.deploy.devnet.chain import account
from earnest.protocol.attestation import Registration, platform_hash
from earnest.protocol.run import Role
from earnest.protocol.verdicts import Verdict
from tests.attestation.vectors import read
from tests.client.world import SEED, make_world

T0, T1, V0, V1 = "trainer-0", "trainer-1", "validator-0", "validator-1"
TRAINERS = tuple(f"trainer-{number}" for number in range(6))
KILLED, RENEWED, FORGER, LATE, SILENT, BARE = TRAINERS
VENDOR = SimulatedVendor()
CODE = b"the training code"
QUOTE = parse_quote(SimulatedAttester(VENDOR, CODE).quote(bytes(64)).quote)
POLICY = PolicyFile.from_quotes([QUOTE])
NOT_COUNTED = Verdict.NOT_COUNTED


class Silent:
    """A machine whose quoting service does not answer."""

    kind, root_id = "simulated", VENDOR.root_id

    def quote(self, report_data: bytes) -> Quoted:
        raise AttesterError("the quoting service does not answer", "start it")


def machine(number: int) -> SimulatedAttester:
    return SimulatedAttester(VENDOR, CODE, platform=number)


def draws(label: str) -> Callable[[int], bytes]:
    count = iter(range(1_000))
    return lambda size: sha256(f"{label}/{next(count)}".encode()).digest()[:size]


def keeper(world: World, name: str, attester: Attester, **options: Any) -> EnclaveKeys:
    account, policy = world.account(name), world.setup.policy
    assert policy is not None
    label = f"{name}/{len(list(account.folder.rglob('*')))}"
    return EnclaveKeys.of(account, world.run, attester, policy, draws(label), **options)


def at_work(world: World, name: str, keeper: EnclaveKeys) -> TrainerNode:
    """The account's node, attesting with this keeper."""
    attesting = AttestedRounds(keeper, world.run, world.account(name).journal, world.chain.head)
    node = world.node(name, attested_rounds=attesting)
    assert isinstance(node, TrainerNode)
    return node


def troubles(node: TrainerNode) -> list[tuple[int | None, str]]:
    assert node.attested_rounds is not None
    return [(one.round, one.reason or one.cause) for one in node.attested_rounds.troubles]


def attested_world(folder: Path, trainers: int, **setup: Any) -> AbstractContextManager[World]:
    names = tuple(f"trainer-{number}" for number in range(trainers))
    options: dict[str, Any] = {"validators": 1, "rounds": 1, "policy": POLICY, "idle": names, **setup}
    return make_world(folder, attacks=("none",) * trainers, **options)


def reasons(world: World, name: str, round: int) -> dict[int, str]:
    """Returns, for each seat, why a validator did not count its update, from its measurements file."""
    node = world.nodes[name]
    position = node.seat_in(round)
    report = None if position is None else node.record.reports(round)[position]
    assert report is not None
    measurements = json.loads(world.account(name).public.get(report.measurements, 1 << 24))
    return {one["seat"]: one["reason"] for one in measurements["seats"] if "reason" in one}


class Forger:
    """Signs with a key that no quote names."""

    def __init__(self, inner: EnclaveKeys) -> None:
        self.live, self.due, self.renew = inner.live, inner.due, inner.renew
        self._place, self._own = inner.scope, EnclaveKey(b"\1" * 32)

    def sign(self, round: int, manifest_hash: bytes, start: int, at: object) -> bytes:
        return self._own.sign(self._place.statement(round, manifest_hash))


@dataclass
class Played:
    """One round in which every trainer has another trouble."""

    world: World
    nodes: dict[str, TrainerNode]
    keys: dict[str, list[str | None]]
    """The chain's enclave key of a trainer at the moments that its test asks for."""

    @property
    def record(self) -> RunRecord:
        return self.world.nodes[V0].record


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    with attested_world(tmp_path_factory.mktemp("world"), len(TRAINERS), validators=2) as world:
        yield play(world)


def play(world: World) -> Played:
    keepers = {name: keeper(world, name, machine(number)) for number, name in enumerate(TRAINERS)}
    keepers[SILENT] = keeper(world, SILENT, Silent())
    told: dict[str, EnclaveKeys] = {**keepers, FORGER: Forger(keepers[FORGER])}
    nodes = {name: at_work(world, name, told[name]) for name in (KILLED, RENEWED, FORGER, SILENT)}
    world.node(BARE)
    keys: dict[str, list[str | None]] = {RENEWED: [], LATE: []}

    def look(name: str) -> None:
        live = keepers[name].live(world.chain.head())
        keys[name].append(live and live.address)

    window = world.schedule.commit(0)
    world.play(until=window.start + 1)
    world.turn()
    look(RENEWED)
    assert keepers[RENEWED].renew(world.chain.head()) is not None
    look(RENEWED)
    kill(world)
    world.devnet.travel((window.start + window.end) // 2)
    nodes[LATE] = at_work(world, LATE, keepers[LATE])
    for moment in (window.end, window.end + 1):
        world.turn()
        look(LATE)
        world.devnet.travel(moment)
    nodes[KILLED] = at_work(world, KILLED, keeper(world, KILLED, Silent()))
    world.play()
    look(LATE)
    return Played(world, nodes, keys)


def kill(world: World) -> None:
    """Ends the process between commit and reveal; the enclave's key is lost, too."""
    assert world.account(KILLED).journal.salts.find(world.run, 0, Role.TRAINER) is not None
    for path in (world.account(KILLED).folder / "enclave").iterdir():
        path.unlink()
    world.open(KILLED)
    world.served.add(KILLED, world.account(KILLED).serve())


def test_a_trainer_with_a_denied_key_does_not_train(tmp_path: Path) -> None:
    """A guardian's denial is known for a round before it counts: then a node stops, and resumes with another key."""
    guardian = account(SEED, 0).address  # the sponsor's
    policy = PolicyFile.from_quotes([QUOTE], guardian=guardian)
    with attested_world(tmp_path, 2, rounds=4, policy=policy) as world:
        nodes = [
            at_work(world, name, keeper(world, name, machine(number))) for number, name in enumerate((T0, T1))
        ]
        window = world.schedule.commit(0)
        world.play(until=window.start + 1)
        denied = platform_hash(VENDOR.ppid(0))
        world.send("sponsor", world.contracts.registry.deny(policy.policy, denied))
        world.play(until=world.schedule.commit(3).start)
        record = nodes[1].record
        assert [sorted(record.round(round).commits) for round in range(3)] == [[0, 1], [0, 1], [1]]
        other = keeper(world, T0, machine(7))
        assert other.renew(world.chain.head()) is not None
        world.play()
        assert sorted(record.round(3).commits) == [0, 1]
        assert world.bond(T0) == TRAINER_BOND


def seat(name: str) -> int:
    return TRAINERS.index(name)


def test_only_updates_signed_by_an_enclave_are_paid_and_no_bond_is_burned(played: Played) -> None:
    world, record = played.world, played.record
    assert record.round(0).manifests.keys() == set(range(len(TRAINERS))), "nobody was kept from revealing"
    assert record.round(0).attested.keys() == {seat(KILLED), seat(RENEWED)}
    verdicts = dict(zip(TRAINERS, record.settled(0).verdicts, strict=True))
    assert verdicts == dict.fromkeys(TRAINERS, NOT_COUNTED) | {
        KILLED: Verdict.ACCEPTED,
        RENEWED: Verdict.ACCEPTED,
    }
    assert {name for name in TRAINERS if world.idle(name)} == {KILLED, RENEWED}
    assert [world.bond(name) for name in TRAINERS] == [TRAINER_BOND] * len(TRAINERS)
    assert world.burned() == 0


def test_two_validators_say_the_same_and_why(played: Played) -> None:
    refused = {seat(name) for name in (FORGER, LATE, SILENT, BARE)}
    expected = dict.fromkeys(refused, "not attested: the reveal was not attested")
    assert reasons(played.world, V0, 0) == reasons(played.world, V1, 0) == expected
    assert len(set(played.record.round(0).report_words.values())) == 1


def test_a_node_killed_before_the_reveal_reveals_the_signature_that_it_wrote_down(played: Played) -> None:
    """With no key and no machine left that could make another."""
    assert seat(KILLED) in played.record.round(0).attested


def test_a_key_renewed_after_the_commit_signs_anew(played: Played) -> None:
    before, after = played.keys[RENEWED]
    assert before != after == played.record.round(0).attested[seat(RENEWED)].key
    assert troubles(played.nodes[RENEWED]) == []


def test_a_signature_that_is_refused_is_left_out_at_once(played: Played) -> None:
    assert troubles(played.nodes[FORGER]) == [(0, "runs: wrong enclave signature")]


def test_a_machine_that_gives_no_quote_does_not_stop_the_node(played: Played) -> None:
    cause = "the quoting service does not answer"
    assert troubles(played.nodes[SILENT]) == [(None, cause)]
    assert played.nodes[SILENT].figures()["attestation"]["troubles"][0]["cause"] == cause


def test_a_key_is_not_registered_while_a_reveal_or_a_late_commit_is_due(played: Played) -> None:
    late, revealing, after = played.keys[LATE]
    assert late is revealing is None
    assert after is not None


class Chain:
    """As much of a keeper as needs no world: one key, that the chain has until it is cut off."""

    def __init__(self) -> None:
        self.key, self.cut = EnclaveKey(b"\3" * 32), False

    def live(self, at: object) -> LiveKey | None:
        if self.cut:
            raise EndpointDown("the endpoint does not answer", "give another")
        return LiveKey(self.key.address, 100)

    def due(self, at: object) -> bool:
        return True

    def renew(self, at: object) -> None:
        raise OSError(28, "No space left on device")

    def sign(self, round: int, manifest_hash: bytes, start: int, at: object) -> bytes:
        return self.key.sign(manifest_hash)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal.sqlite", "0x" + "11" * 20) as journal:
        yield journal


HEAD = BlockRef(7, b"\7" * 32, 50)


def attesting(chain: Chain, journal: Journal) -> AttestedRounds:
    return AttestedRounds(chain, 1, journal, lambda: HEAD)  # type: ignore[arg-type]


def test_a_saved_signature_is_revealed_even_if_the_chain_cannot_be_read(journal: Journal) -> None:
    chain, manifest = Chain(), b"\4" * 32
    attesting(chain, journal).sign(0, manifest, 10)
    chain.cut = True
    restarted = attesting(chain, journal)
    assert restarted.signature(0, manifest, 10) == chain.key.sign(manifest)
    assert restarted.signature(1, manifest, 10) == b""
    assert restarted.troubles[-1].cause == "the endpoint does not answer"


def test_a_saved_signature_is_not_used_for_another_manifest_or_an_expired_key(
    journal: Journal,
) -> None:
    chain, manifest, other = Chain(), b"\4" * 32, b"\5" * 32
    signing = attesting(chain, journal)
    signing.sign(0, manifest, 10)
    assert signing.signature(0, other, 10) == chain.key.sign(other)
    chain.sign = lambda *_: b""  # type: ignore[method-assign]
    assert signing.signature(0, manifest, 99) == chain.key.sign(manifest)
    assert signing.signature(0, manifest, 100) == b""


def test_a_full_disk_while_registering_is_logged_once_a_block(journal: Journal) -> None:
    signing = attesting(Chain(), journal)
    for _ in range(3):
        signing.keep_key(HEAD)
    assert [(one.round, one.reason) for one in signing.troubles] == [(None, "")]
    assert "No space left" in signing.troubles[0].cause


# A run pinned to Intel's root


def test_validators_refuse_a_simulated_key_under_intels_root_whatever_ca_the_sponsor_pinned(
    tmp_path: Path,
) -> None:
    policy = PolicyFile.from_quotes([QUOTE], root=INTEL_ROOT_ID)
    with attested_world(tmp_path, 2, policy=policy) as world:
        told = at_work(world, T0, keeper(world, T0, machine(0)))
        at_work(world, T1, keeper(world, T1, machine(1), check=False))
        world.play()
        record = world.nodes[V0].record
        assert record.round(0).attested.keys() == {1}
        assert record.settled(0).verdicts == (NOT_COUNTED, NOT_COUNTED)
        assert reasons(world, V0, 0)[0] == "not attested: the reveal was not attested"
        assert reasons(world, V0, 0)[1].startswith("not attested: signatures: ")
        ((_, cause),) = troubles(told)
        assert "SIMULATED" in cause and "Intel SGX Root CA" in cause
        assert [world.bond(name) for name in (T0, T1)] == [TRAINER_BOND] * 2
        assert [world.idle(name) for name in (T0, T1)] == [0, 0]


def test_the_registry_refuses_a_simulated_key_where_intels_ca_is_pinned(tmp_path: Path) -> None:
    genuine = parse_quote(read("quotes/tdx4-b0c06f-phala.bin"))
    lenient = PolicyFile.from_quotes([QUOTE], root=INTEL_ROOT_ID)
    rules = replace(lenient.policy, pck_cas=(pck_chain(genuine)[1].public_key,))
    with attested_world(tmp_path, 1, policy=replace(lenient, policy=rules), idle=(T0, V0)) as world:
        registration = keeper(world, T0, machine(0), check=False)
        assert registration.due(world.chain.head())
        place = registration.scope
        challenge = world.contracts.registry.challenge(world.run, place.trainer, world.chain.head())
        key = EnclaveKey(b"\2" * 32).address
        quote = parse_quote(machine(0).quote(place.binding(key, challenge[1]) + bytes(32)).quote)
        parts = quote_calldata(quote, lenient.policy.pck_cas)
        asked = Registration(world.run, place.trainer, key, challenge[0], bytes(32), bytes(32))
        with pytest.raises(Reverted, match="attestation: wrong PCK signature"):
            world.send(T0, world.contracts.registry.register(asked, rules, parts))
