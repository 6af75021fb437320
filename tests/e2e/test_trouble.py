"""Nodes in trouble: refused at the start with a clear error, or continuing in spite of what others do to them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from earnest.client.account.transactions import fund_calls
from earnest.client.chain.outbox import MemoryIntents, Outbox
from earnest.client.chain.signer import Signer
from earnest.client.run.bundle import load_bundle
from earnest.client.storage.objects import ObjectStore
from earnest.protocol.report import read_report
from earnest.protocol.run import Role
from earnest.protocol.verdicts import Verdict
from tests.e2e.processes import Actor, Town, Watch, town
from tests.e2e.runs import BOND, Seat, bond_of, earned, join, open_run, settle_in
from tests.e2e.servers import Liar, Mainnet, Proxy

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with town(tmp_path_factory.mktemp("town"), "devnet", 0.5) as made:
        yield made


@pytest.fixture(scope="module")
def people(place: Town) -> tuple[Actor, list[Actor]]:
    """The sponsor; a trainer, another one whose server lies, a validator."""
    return settle_in(place, ("trainer", "liar", "validator"))


@pytest.fixture(scope="module")
def seats(people: tuple[Actor, list[Actor]]) -> list[Seat]:
    """Their seats in run 1, which has one round and does not start by itself before the tests are through."""
    sponsor, (trainer, liar, validator) = people
    run = open_run(sponsor, 1, [validator]).document["run"]
    return [*join(run, Role.TRAINER, [trainer, liar]), *join(run, Role.VALIDATOR, [validator])]


def refused(actor: Actor, *argv: str, code: int, **settings: str) -> dict[str, str]:
    return actor.earnest(*argv, code=code, **settings)["error"]


def test_a_wrong_password(seats: list[Seat]) -> None:
    error = refused(seats[0].actor, "trainer", "start", "1", code=4, password="not this one")
    assert error["code"] == "wrong_password"
    assert seats[0].actor.address in error["cause"]


def test_the_wrong_chain(seats: list[Seat]) -> None:
    with Mainnet() as elsewhere:
        error = refused(seats[0].actor, "trainer", "start", "1", code=3, rpc=elsewhere.url)
    assert error["code"] == "wrong_chain"
    assert "serves chain 1, not 1337" in error["cause"]


def test_an_endpoint_that_is_down_when_the_node_starts(seats: list[Seat]) -> None:
    with Proxy("http://127.0.0.1:9") as proxy:
        error = refused(seats[0].actor, "trainer", "start", "1", code=3, rpc=proxy.url)
    assert error["code"] == "endpoint_down"
    assert proxy.url in error["cause"]


def test_two_nodes_with_one_key(seats: list[Seat], tmp_path: Path) -> None:
    trainer = seats[0]
    trainer.work(1)
    trainer.at_work()
    key = next((trainer.actor.folder / "data/keys").glob("*.json"))
    elsewhere = {"data_dir": str(tmp_path), "keystore": str(key)}
    error = refused(trainer.actor, "trainer", "start", "1", code=5, **elsewhere)
    assert error["code"] == "journal_locked"
    assert "is in use by another node" in error["cause"]
    assert trainer.node.stop() == 0


def test_a_recipe_that_is_not_the_run_s(
    people: tuple[Actor, list[Actor]], seats: list[Seat], place: Town
) -> None:
    sponsor, (_, _, validator) = people
    watch, store = Watch(place, 1), ObjectStore(sponsor.folder / "other")
    contracts, params, at = watch.contracts, watch.record.params, watch.look()
    bundle = load_bundle(watch.record.uri, params, ObjectStore("memory:///"))
    other = replace(bundle, recipe=replace(bundle.recipe, seed=bundle.recipe.seed + 1))
    uri = f"{sponsor.folder / 'other'}/{store.put(other.to_bytes()).hex()}"
    params = replace(params, start=at.time + 2 * params.schedule().period)
    outbox = Outbox(
        watch.deployment.chain,
        Signer(place.sponsor_key),
        MemoryIntents(),
        clock=time.monotonic,
        sleep=time.sleep,
    )
    for step in fund_calls(contracts, sponsor.address, params, uri, at):
        outbox.send(step.name, step.call)
    error = refused(validator, "run", "join", "2", "--role", "validator", code=1)
    assert error["code"] == "bundle"
    assert (
        f"has hash {other.recipe.hash().hex()}, the run fixed {bundle.recipe.hash().hex()}" in error["cause"]
    )


def test_an_endpoint_that_comes_back_and_a_trainer_whose_server_lies(seats: list[Seat], place: Town) -> None:
    trainer, liar, validator = seats
    with Proxy(place.url) as proxy, Liar() as lies:
        for seat in (trainer, validator):
            seat.actor.environment["EARNEST_RPC"] = proxy.url
        liar.settings["public_url"] = lies.url
        proxy.up()
        for seat in seats:
            seat.work(1)
        for seat in seats:
            seat.at_work()
        watch = Watch(place, 1)
        _play(watch, seats, proxy)

        report = read_report(watch.record.round(0).report_words[validator.index], 2)
        assert report is not None
        assert report.votes[trainer.index].verdict == Verdict.ACCEPTED
        assert report.votes[trainer.index].weight > 0
        assert report.votes[liar.index].verdict == Verdict.UNAVAILABLE
        assert lies.asked > 0
        assert [bond_of(watch, seat) for seat in seats] == [BOND[seat.role] for seat in seats]
        assert [earned(watch, seat) > 0 for seat in seats] == [True, False, True]
        for seat in seats:
            assert seat.node.running
            assert "Traceback" not in seat.node.err


def _play(watch: Watch, seats: list[Seat], proxy: Proxy) -> None:
    """The run's one round; two of three nodes have no endpoint when its reveal window opens."""
    schedule, seen = watch.record.params.schedule(), watch.record.round(0)
    trainer, liar, validator = seats
    watch.jump(schedule.commit(0).start)
    watch.until(lambda _: len(seen.commits) == 2, "both have committed")
    proxy.down()
    watch.jump(schedule.reveal(0).start)
    watch.until(lambda _: liar.index in seen.manifests, "the one with an endpoint of its own has revealed")
    trainer.node.says("cannot be reached")
    validator.node.says("cannot be reached")
    assert trainer.index not in seen.manifests
    proxy.up()
    watch.until(lambda _: len(seen.manifests) == 2, "the other has revealed")
    watch.jump(schedule.report_commit(0).start)
    watch.until(lambda _: bool(seen.report_commits), "the report is committed")
    watch.jump(schedule.report_reveal(0).start)
    watch.until(lambda _: bool(seen.report_words), "the report is revealed")
    watch.jump(schedule.settle(0).start)
    watch.until(lambda _: bool(watch.events("ValidatorsPaid", round=0)), "the round is settled and paid")
