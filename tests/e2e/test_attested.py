"""An attested run by real processes: keys registered by the nodes themselves, one node killed, one with other code.

On anvil, whose P-256 precompile is its own; the embedded chain's is used by every other test of attested runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from earnest.attestation.roots import SIMULATED_ROOT_ID, SIMULATED_WARNING
from earnest.protocol.run import Role
from earnest.protocol.verdicts import Verdict
from tests.e2e.processes import Actor, Town, Watch, town
from tests.e2e.runs import BOND, Seat, bond_of, earned, join, open_run, settle_in

pytestmark = pytest.mark.e2e

CODE = "the training image"
TERMS = """verification = "attested"
attestation_policy = "measured/policy.json"
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Town]:
    with town(tmp_path, "anvil", 1.0) as made:
        yield made


def test_nodes_register_their_keys_and_only_the_measured_code_is_paid(place: Town) -> None:
    sponsor, people = settle_in(place, ("t0", "t1", "v0"))
    run = open_attested(sponsor, people[2])
    trainers, (validator,) = join(run, Role.TRAINER, people[:2]), join(run, Role.VALIDATOR, people[2:])
    for number, (seat, code) in enumerate(zip(trainers, (CODE, "other code"), strict=True)):
        seat.flags = ("--attester", "simulated", "--code", code, "--platform", str(number))
    for seat in (*trainers, validator):
        seat.work(run)
    watch = Watch(place, run)
    good, other = trainers
    watch.until(lambda record: good.actor.address in record.keys, "the measured code has a key")
    other.node.says("which the run's policy does not list")
    play(good, watch)

    record = watch.record
    assert record.round(0).attested.keys() == {good.index}
    assert record.keys.keys() == {good.actor.address}
    verdicts = record.settled(0).verdicts
    assert (verdicts[good.index], verdicts[other.index]) == (Verdict.ACCEPTED, Verdict.NOT_COUNTED)
    assert "the reveal was not attested" in validator.node.err
    assert SIMULATED_WARNING in good.node.err
    assert [bond_of(watch, seat) for seat in trainers] == [BOND[Role.TRAINER]] * 2
    assert earned(watch, good) > 0 == earned(watch, other)
    assert all("Traceback" not in process.err for process in place.processes)
    check_shown(people[2], run)


def open_attested(sponsor: Actor, validator: Actor) -> int:
    sponsor.earnest("attest", "simulate", "measured", "--code", CODE)
    return open_run(sponsor, 1, [validator], TERMS).document["run"]


def play(good: Seat, watch: Watch) -> None:
    """Round 0; the good node is killed between commit and reveal."""
    schedule, seen = watch.record.params.schedule(), watch.record.round(0)
    watch.jump(watch.record.params.start)
    watch.until(lambda _: len(seen.commits) == 2, "both have committed")
    good.node.kill()
    watch.jump(schedule.reveal(0).start)
    good.work(watch.record.run)
    watch.until(lambda _: len(seen.manifests) == 2, "both have revealed")
    watch.jump(schedule.report_commit(0).start)
    watch.until(lambda _: bool(seen.report_commits), "the report is committed")
    watch.jump(schedule.report_reveal(0).start)
    watch.until(lambda _: bool(seen.report_words), "the report is revealed")
    watch.jump(schedule.settle(0).start)
    watch.until(lambda _: bool(watch.events("ValidatorsPaid", round=0)), "the round is settled and paid")


def check_shown(anybody: Actor, run: int) -> None:
    """Whose machines the run takes is shown by its own name, and so is each key's."""
    shown = anybody.earnest("run", "show", str(run))["attestation"]
    assert (shown["root"], shown["root_id"]) == ("SIMULATED - NOT A TEE", "0x" + SIMULATED_ROOT_ID.hex())
    (key,) = anybody.earnest("attest", "show", str(run))["keys"]
    assert (key["root"], key["live"]) == ("SIMULATED - NOT A TEE", True)
