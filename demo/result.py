"""The result of a demo, `demo.json`: what happened in each round, and where everyone stands at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from earnest.attestation.roots import SIMULATED_WARNING
from earnest.base.strict_json import read_json
from earnest.client.node.node import Node
from earnest.client.trainer.node import TrainerNode
from earnest.demo.attacks.enclaves import Cheat
from earnest.demo.options import DemoOptions
from earnest.demo.world import World
from earnest.protocol.run import Role
from earnest.protocol.verdicts import Verdict
from earnest.training.tasks.task import Task
from earnest.validator.gain import Meter

MAX_MEASUREMENTS_BYTES = 1 << 26


@dataclass(frozen=True)
class Member:
    """The holder of a seat and its node. `cheat` is set for a dishonest trainer of an attested run."""

    name: str
    role: Role
    honest: bool
    node: Node
    cheat: Cheat | None = None


class ResultDocument:
    """Collects the result while the demo is played: `settle_round` until the last round, then `finish`."""

    def __init__(self, world: World, options: DemoOptions, members: list[Member]) -> None:
        self.world, self.options, self.members = world, options, members
        self.trainers = [member for member in members if member.role is Role.TRAINER]
        self.judge = next(member for member in members if member.role is Role.VALIDATOR and member.honest)
        self.files = world.files[self.judge.name]
        self.rounds: list[dict[str, Any]] = []
        self._loss = ReportLoss(self.files.task, self.files.bundle.recipe.seed)
        self._bonds = self._read_bonds()

    def settle_round(self) -> dict[str, Any] | None:
        """Returns the document of the next round once that round is settled; None before."""
        follower, round = self.judge.node.follower, len(self.rounds)
        if round >= follower.record.planned_rounds or follower.at is None:
            return None
        settled_by = follower.schedule.settle(round).start + 1
        if follower.at.time < settled_by or self.world.devnet.now() < settled_by:
            return None
        document = self._round(round)
        if self.world.setup.policy is not None:
            document |= self._attested_round(round)
        self.rounds.append(document)
        return document

    def finish(self) -> dict[str, Any]:
        """Returns the whole result, after the run and the refund."""
        world, options = self.world, self.options
        final = world.contracts.settlement.final_state(world.run, at=world.chain.head())
        states = {
            member.name: member.node.follower.state_after(len(self.rounds) - 1) for member in self.members
        }
        return {
            "seed": options.seed,
            "attack": options.attack,
            "codec": options.codec,
            "attestation": self.attestation(),
            "initial_loss": self._loss(self.files.initial.state.parameters),
            "final_loss": self.rounds[-1]["loss"],
            "final_state_root": final.hex() if final else None,
            "state_roots": {name: state.root.hex() for name, state in states.items() if state is not None},
            "rounds": self.rounds,
            "participants": [self._participant(member) for member in self.members],
            "refunded_wei": str(world.idle("sponsor")),
            "burned_wei": str(world.burned()),
        }

    def attestation(self) -> dict[str, Any] | None:
        """Returns the policy of an attested run and every trainer's enclave key; None for any other run."""
        policy = self.world.setup.policy
        if policy is None:
            return None
        return {
            "simulated": True,
            "warning": SIMULATED_WARNING,
            "root": policy.root_name,
            "root_id": policy.policy.root_id.hex(),
            "policy": policy.hash.hex(),
            "workloads": [workload.hex() for workload in policy.policy.workloads],
            "keys": [self._key(member) for member in self.trainers],
        }

    def _round(self, round: int) -> dict[str, Any]:
        judge = self.judge.node
        record, after = judge.record, judge.follower.state_after(round)
        assert after is not None
        settled, manifests = record.settled(round), record.round(round).manifests
        names = [member.name for member in self.trainers]
        verdicts = [v if seat in manifests else Verdict.ABSENT for seat, v in enumerate(settled.verdicts)]
        return {
            "round": round,
            "trial": round < self.files.bundle.recipe.scoring.trial_rounds,
            "loss": self._loss(after.state.parameters),
            "state_root": after.root.hex(),
            "seed": (record.round(round).seed or b"").hex(),
            "update_bytes": max((manifest.size for manifest in manifests.values()), default=0),
            "dense_bytes": judge.follower.codec.spec.dense_bytes,
            "verdicts": dict(zip(names, map(_verdict_name, verdicts), strict=False)),
            "weights": dict(zip(names, settled.consensus, strict=False)),
            "pay_wei": dict(zip(names, map(str, settled.trainer_pay), strict=False)),
            "bonds_wei": {name: str(bond) for name, bond in self._read_bonds().items()},
        }

    def _attested_round(self, round: int) -> dict[str, Any]:
        """Returns the updates that an enclave signed, and the reasons for which the others were refused."""
        attested = self.judge.node.record.round(round).attested
        seats = list(enumerate(self.trainers))
        return {
            "attested": {member.name: seat in attested for seat, member in seats},
            "reasons": {
                member.name: [
                    *_refusals(member, None),
                    *_refusals(member, round),
                    *self._reasons(round, seat),
                ]
                for seat, member in seats
            },
        }

    def _reasons(self, round: int, seat: int) -> list[str]:
        """Returns an honest validator's reasons for not counting an update, from its measurements file."""
        node = self.judge.node
        position = node.seat_in(round)
        report = None if position is None else node.record.reports(round)[position]
        if report is None or not any(report.measurements):
            return []
        store = self.world.account(self.judge.name).public
        content = store.get(report.measurements, MAX_MEASUREMENTS_BYTES)
        measurements = read_json(content, max_bytes=MAX_MEASUREMENTS_BYTES)
        return [
            entry["reason"] for entry in measurements["seats"] if entry["seat"] == seat and "reason" in entry
        ]

    def _key(self, member: Member) -> dict[str, Any]:
        """Returns a trainer's enclave key: registered, or refused with the reason."""
        key = self.judge.node.record.newest_key(self.world.address(member.name))
        return {
            "name": member.name,
            "cheat": member.cheat and member.cheat.name,
            "description": "an honest enclave" if member.cheat is None else member.cheat.description,
            "key": key and key.key,
            "workload": key and key.workload.hex(),
            "platform": key and key.platform.hex(),
            "refused": _refusals(member, None),
        }

    def _participant(self, member: Member) -> dict[str, Any]:
        return {
            "name": member.name,
            "role": member.role.name.lower(),
            "account": self.world.address(member.name),
            "honest": member.honest,
            "cheat": member.cheat and member.cheat.name,
            "bond_start_wei": str(self._bonds[member.name]),
            "bond_end_wei": str(self.world.bond(member.name)),
            "earned_wei": str(self.world.idle(member.name)),
        }

    def _read_bonds(self) -> dict[str, int]:
        return {member.name: self.world.bond(member.name) for member in self.members}


class ReportLoss:
    """Mean loss on the public report split, nats per byte. For the reader only: nobody is judged by it."""

    def __init__(self, task: Task, seed: int) -> None:
        self._meter = Meter(task, seed, split="report")
        self._batches = self._meter.batches(task.report_ids)

    def __call__(self, parameters: Mapping[str, Tensor]) -> float:
        return float(self._meter.losses(parameters, self._batches).mean())


def _verdict_name(verdict: int | None) -> str:
    return "undecided" if verdict is None else Verdict(verdict).name.lower()


def _refusals(member: Member, round: int | None) -> list[str]:
    """Returns the reasons for which contracts refused a trainer's signature in a round, or its keys (round None)."""
    attested = member.node.attested_rounds if isinstance(member.node, TrainerNode) else None
    troubles = [] if attested is None else attested.troubles
    return [trouble.reason or trouble.cause for trouble in troubles if trouble.round == round]
