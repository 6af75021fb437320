"""Attestation of reveals: decided by the registration on the record, its evidence file and the policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from earnest.attestation.formats.quote import parse_quote
from earnest.attestation.policy_document import PolicyDocument
from earnest.attestation.policy_file import PolicyFile
from earnest.attestation.prover.simulated import SimulatedAttester
from earnest.client.run.follower import Follower
from earnest.client.run.record import RunRecord
from earnest.client.storage.journal import Journal
from earnest.client.storage.objects import ObjectStore
from earnest.demo.world import TRAINER_BOND
from earnest.protocol.attestation import key_entry
from earnest.protocol.recipe import Recipe
from earnest.protocol.run import Level
from earnest.protocol.verdicts import Verdict
from earnest.training.codecs import make_codec
from earnest.training.diloco.initial import initial_state
from earnest.training.diloco.state import RootedState
from earnest.training.tasks.shakespeare import Shakespeare
from earnest.validator.attested import Enclaves
from earnest.validator.judge import judge_round
from earnest.validator.payload import UNAVAILABLE, Rejection
from tests.client.attested_town import VENDOR, Town, enclave_key, open_town
from tests.client.world import make_world
from tests.validator.arena import Arena

NOWHERE = "http://127.0.0.1:9"
FLOOR = 101
"""Raised in round 1, so that it counts from round 3 on; the vendor's usual collateral has number 100."""

NEWER = 200
OTHER_QUOTE = "not attested: the evidence is of another quote, or PCK key, than the one registered"


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """The first trainer's enclave is good; the other's has another fault in each round."""
    folder = tmp_path_factory.mktemp("town")
    with open_town("embedded", folder, PolicyDocument(margin_s=0)) as town:
        town.open_run()
        town.register()
        for round in range(5):
            town.travel(town.params.schedule().commit(round).start)
            signs = spoil(town, round)
            town.commit("trainer", 0, round)
            town.commit("other trainer", 1, round)
            town.travel(town.params.schedule().reveal(round).start)
            town.reveal("trainer", 0, round, "key")
            town.reveal("other trainer", 1, round, signs)
        yield town


def spoil(town: Town, round: int) -> str | None:
    """What the other trainer, and the guardian, do in a round's commit window; the key it will sign with."""
    other = SimulatedAttester(VENDOR, platform=1)
    if round == 0:
        return None
    if round == 1:
        stale = VENDOR.collateral(status="OutOfDate", advisories=("INTEL-SA-01192",))
        town.register("other trainer", attester=replace(other, collateral=stale))
        town.send("guardian", town.contracts.registry.raise_floor(town.policy.policy, FLOOR))
    if round == 2:
        town.register("other trainer", root=next(iter(town.evidence)), attester=other)
    if round == 3:
        brief = VENDOR.collateral(evaluation=NEWER, expires=town.params.schedule().opens(4))
        town.register("other trainer", attester=replace(other, collateral=brief))
    if round == 4:
        newer = SimulatedAttester(VENDOR, collateral=VENDOR.collateral(evaluation=NEWER))
        town.register("trainer", attester=newer)
    return "key"


def enclaves(town: Town, folder: Path, files: dict[bytes, bytes] | None = None) -> Enclaves:
    """A validator's view, with these evidence files (default: all) in its store and nobody to ask for others."""
    task = Shakespeare(layers=1, width=8, heads=1, context=8)
    recipe = Recipe(task="earnest.training.tasks.shakespeare:Shakespeare", pool_size=4_000)
    initial, store = initial_state(task, recipe), ObjectStore(folder / "public")
    for content in (town.evidence if files is None else files).values():
        store.put(content)
    follower = Follower(
        record=RunRecord(town.run),
        recipe=recipe,
        codec=make_codec(recipe.codec, initial.spec),
        initial=RootedState.of(initial),
        scanner=town.deployment.scanner(),
        store=store,
        journal=Journal(folder / "journal.sqlite", "0x" + "11" * 20),
        locate=lambda uri: NOWHERE,
        policy=town.policy,
    )
    follower.advance(town.chain.head())
    return Enclaves(follower, town.chain, town.contracts.registry.address)


def reasons(found: dict[int, Rejection]) -> dict[int, str]:
    assert all(refusal.verdict == Verdict.NOT_COUNTED for refusal in found.values())
    return {seat: refusal.reason for seat, refusal in found.items()}


@pytest.fixture(scope="module")
def view(town: Town, tmp_path_factory: pytest.TempPathFactory) -> Enclaves:
    return enclaves(town, tmp_path_factory.mktemp("view"))


def test_an_unattested_update_does_not_count_where_the_run_requires_attestation(view: Enclaves) -> None:
    assert reasons(view.unattested(0)) == {1: "not attested: the reveal was not attested"}


def test_a_machine_out_of_date_does_not_count(view: Enclaves) -> None:
    (reason,) = reasons(view.unattested(1)).values()
    assert reason.startswith("not attested: ") and "OutOfDate" in reason


def test_evidence_of_another_quote_does_not_count(view: Enclaves) -> None:
    assert reasons(view.unattested(2)) == {1: OTHER_QUOTE}


def test_evidence_under_another_pck_key_does_not_count(town: Town, tmp_path: Path) -> None:
    """One that was denied, say, while the registry was shown an older one of the same platform."""
    seen = enclaves(town, tmp_path)
    attested = seen._follower.record.round(0).attested
    attested[0] = replace(attested[0], pck=b"\1" * 32)
    assert reasons(seen.unattested(0))[0] == OTHER_QUOTE


def test_a_raised_floor_counts_from_the_second_next_round(view: Enclaves) -> None:
    assert 0 not in view.unattested(2)
    assert str(FLOOR) in reasons(view.unattested(3))[0]
    assert 1 not in view.unattested(3)
    assert 0 not in view.unattested(4)


def test_collateral_that_expired_before_the_round_does_not_count(view: Enclaves) -> None:
    expected = "not attested: the collateral of the enclave key had expired when the round opened"
    assert reasons(view.unattested(4)) == {1: expected}


def test_a_denied_key_counts_no_more_without_a_revocation(tmp_path: Path) -> None:
    """From the second next round on, which is when a revocation would have ended the key: no round under way is hit."""
    with open_town("embedded", tmp_path, PolicyDocument(margin_s=0)) as town:
        town.open_run()
        town.register()
        town.register("other trainer", key="spared", attester=SimulatedAttester(VENDOR, platform=1))
        entry = key_entry(enclave_key("key").address)
        for round in range(3):
            town.travel(town.params.schedule().commit(round).start)
            if round == 0:
                town.send("guardian", town.contracts.registry.deny(town.policy.policy, entry))
            town.commit("trainer", 0, round)
            town.commit("other trainer", 1, round)
            town.travel(town.params.schedule().reveal(round).start)
            town.reveal("trainer", 0, round, "key")
            town.reveal("other trainer", 1, round, "spared")
        view = enclaves(town, tmp_path / "view")
        assert view.unattested(0) == view.unattested(1) == {}
        expected = f"not attested: the policy's guardian denied 0x{entry.hex()}"
        assert reasons(view.unattested(2)) == {0: expected}


def test_evidence_that_nobody_serves_does_not_count(town: Town, tmp_path: Path) -> None:
    found = reasons(enclaves(town, tmp_path, {}).unattested(0))
    assert found[0] == "not attested: nobody serves the evidence of the enclave key"


def test_a_failing_disk_makes_a_validator_abstain(town: Town, tmp_path: Path) -> None:
    broken = enclaves(town, tmp_path, {})
    root = town.record().round(0).attested[0].evidence_root
    (tmp_path / "public" / root.hex()).symlink_to(root.hex())
    found = broken.unattested(0)
    assert found[0] == Rejection(Verdict.ABSTAIN, "the validator's own infrastructure failed")


def test_bytes_that_are_no_evidence_do_not_count(town: Town, tmp_path: Path) -> None:
    """Their root was registered: whoever put it there serves what it likes, and harms only itself."""
    for number, junk in enumerate((b"{}", b"\xff" * 100, b"[" * 5_000)):
        folder = tmp_path / str(number)
        seen = enclaves(town, folder, {})
        follower = seen._follower
        key = follower.record.round(0).attested[0]
        root = ObjectStore(folder / "public").put(junk)
        follower.record.round(0).attested[0] = replace(key, evidence_root=root)
        assert reasons(seen.unattested(0))[0].startswith("not attested: ")


def test_two_validators_say_the_same(town: Town, view: Enclaves, tmp_path: Path) -> None:
    fresh = enclaves(town, tmp_path)
    assert [fresh.unattested(round) for round in (4, 2, 0, 3, 1)] == [
        view.unattested(round) for round in (4, 2, 0, 3, 1)
    ]


def test_a_run_with_optional_attestation_asks_for_none(town: Town, tmp_path: Path) -> None:
    seen = enclaves(town, tmp_path, {})
    params = replace(town.params, verification=Level.OPTIONAL)
    seen._follower.record._params = params
    assert seen.unattested(0) == {}


# The judgement


def test_an_unattested_update_earns_nothing_and_costs_nothing(arena: Arena) -> None:
    inputs = arena.train()
    refusal = Rejection(Verdict.NOT_COUNTED, "not attested: the reveal was not attested")
    judged = judge_round(replace(inputs, unattested={2: refusal}))
    assert (judged.votes[2].weight, judged.votes[2].verdict) == (0, Verdict.NOT_COUNTED)
    assert judged.rejections == {2: refusal}
    assert 2 not in judged.measurements.after
    assert [judged.votes[seat].verdict for seat in (0, 1, 3)] == [Verdict.ACCEPTED] * 3
    assert refusal.reason.encode() in judged.measurements_file


def test_a_payload_error_is_reported_before_a_missing_attestation(arena: Arena) -> None:
    inputs = arena.train()
    first = replace(inputs.submissions[0], update=UNAVAILABLE)
    refusal = Rejection(Verdict.NOT_COUNTED, "not attested")
    inputs = replace(inputs, submissions=(first, *inputs.submissions[1:]), unattested={0: refusal})
    assert judge_round(inputs).votes[0].verdict == Verdict.UNAVAILABLE


def test_a_validator_that_could_not_look_at_the_evidence_abstains_from_that_seat(arena: Arena) -> None:
    refusal = Rejection(Verdict.ABSTAIN, "the validator's own infrastructure failed")
    judged = judge_round(replace(arena.train(), unattested={1: refusal}))
    assert judged.votes[1].verdict == Verdict.ABSTAIN
    assert judged.votes[0].verdict == Verdict.ACCEPTED


def test_a_run_that_nobody_can_attest_in_pays_nobody_and_burns_no_bond(tmp_path: Path) -> None:
    quote = parse_quote(SimulatedAttester(VENDOR).quote(bytes(64)).quote)
    policy = PolicyFile.from_quotes([quote])
    with make_world(tmp_path, attacks=("none", "none"), validators=2, rounds=1, policy=policy) as world:
        world.play()
        record = world.nodes["validator-0"].record
        verdicts = [[vote.verdict for vote in said.votes] for said in record.reports(0) if said is not None]
        assert verdicts == [[Verdict.NOT_COUNTED] * 2] * 2
        assert world.bond("trainer-0") == world.bond("trainer-1") == TRAINER_BOND
        assert world.idle("trainer-0") == world.idle("trainer-1") == 0
        assert record.settled(1).pair == (world.params.initial_state,) * 2


def test_a_lack_of_memory_is_an_abstention_and_not_the_end_of_the_process(
    town: Town, view: Enclaves, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(content: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr("earnest.validator.attested.EvidenceFile.read", exhausted)
    found = view.unattested(0)
    assert found[0].verdict == Verdict.ABSTAIN
