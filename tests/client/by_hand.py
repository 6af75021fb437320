"""Rounds without models, in which the test chooses each commitment, reveal and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from earnest.client.node.settler import DueCall, Settler
from earnest.demo.world import World
from earnest.protocol.manifest import Manifest, commitment
from earnest.protocol.report import Report, SeatVote, report_commitment, words_hash
from earnest.protocol.verdicts import Verdict

BASE, NEWEST, EVIDENCE, SALT = (bytes([i]) * 32 for i in range(1, 5))


@dataclass
class Rounds:
    """Plays rounds without models; the test chooses each commitment, reveal and report."""

    world: World
    facts: dict[int, Any] = field(default_factory=dict)
    """The contract's facts of each round, read in its settle window."""

    paid: dict[int, dict[str, int]] = field(default_factory=dict)

    def play(
        self,
        round: int,
        trainers: Mapping[str, int],
        reports: Mapping[str, Sequence[bytes] | None],
        hiding: Sequence[str] = (),
    ) -> list[str]:
        """The `trainers` (name: seat) commit, and reveal unless `hiding`. Reports are words; None is never revealed.

        Returns the names of the settlement calls that were sent.
        """
        world, schedule = self.world, self.world.schedule
        runs, run = world.contracts.runs, world.run
        world.devnet.travel(schedule.commit(round).start + 1)
        manifests = {name: self.manifest(round, name) for name in trainers}
        for name, seat in trainers.items():
            digest = commitment(
                world.chain.chain_id,
                runs.address,
                run,
                round,
                world.address(name),
                manifests[name].hash(),
                SALT,
            )
            world.send(name, runs.commit(run, round, seat, digest))
        world.devnet.travel(schedule.reveal(round).start)
        for name, seat in trainers.items():
            if name not in hiding:
                world.send(name, runs.reveal(seat, manifests[name], SALT))
        self.report(round, reports)
        world.devnet.travel(schedule.settle(round).start)
        self.facts[round] = runs.round_facts(run, round, at=world.chain.head())
        return self.settle(round)

    def report(self, round: int, reports: Mapping[str, Sequence[bytes] | None]) -> None:
        world, schedule = self.world, self.world.schedule
        runs, run = world.contracts.runs, world.run
        world.devnet.travel(schedule.report_commit(round).start)
        if not reports:
            return
        world.send("stranger", runs.seed(run, round))
        world.devnet.mine(4)
        world.send("stranger", runs.seed(run, round))
        for name, words in reports.items():
            hash = words_hash(list(words or ()))
            digest = report_commitment(
                world.chain.chain_id, runs.address, run, round, world.address(name), hash, SALT
            )
            world.send(name, runs.report_commit(run, round, int(name[-1]), digest))
        world.devnet.travel(schedule.report_reveal(round).start)
        for name, words in reports.items():
            if words is not None:
                world.send(name, runs.report_reveal(run, round, int(name[-1]), list(words), SALT))

    def due(self, patience: int = 0) -> list[DueCall]:
        """Returns the calls that are due now and still needed."""
        world, contracts = self.world, self.world.contracts
        record, head = world.deployment.read_run(world.run), world.chain.head()
        settler = Settler(record, contracts.runs, contracts.settlement, patience)
        return [due_call for due_call in settler.due_calls(head) if due_call.still_needed(head)]

    def settle(self, round: int) -> list[str]:
        """Sends due calls until there are none; returns their names."""
        world, sent = self.world, []
        before = {name: world.idle(name) for name in world.names}
        while due := self.due():
            for due_call in due:
                assert due_call.intent not in sent, "sent, and yet still needed"
                world.send("stranger", due_call.call)
                sent.append(due_call.intent)
        self.paid[round] = {name: world.idle(name) - before[name] for name in world.names}
        return sent

    def manifest(self, round: int, name: str) -> Manifest:
        update = bytes([round + 1]) + name.encode().ljust(31)
        return Manifest(
            self.world.run, round, self.world.address(name), BASE, update, bytes(32), bytes(32), 1, 1, 1
        )


def words(*weights: int, newest: bytes = NEWEST) -> list[bytes]:
    votes = tuple(SeatVote(weight, Verdict.ACCEPTED) for weight in weights)
    return Report(BASE, newest, EVIDENCE, votes).words()


def odd_words(*entries: int) -> list[bytes]:
    """A report whose votes are these 24-bit entries, canonical or not, with bits set above and beyond them."""
    word = 0xFFFF
    for place in range(10):
        word = word << 24 | (entries[place] if place < len(entries) else 0xABCDEF)
    return [BASE, NEWEST, EVIDENCE, word.to_bytes(32), b"\xff" * 32]
