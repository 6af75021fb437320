"""A run without a chain, whose rounds are trained and judged by direct calls.

It stays apart from `earnest.demo.world` because it has no chain, nodes or files: tests of the judge change the inputs
of one round, which a node would not let them do, and a round takes a second. Engine, codec, assignment, judgement,
weights and outer step are the real ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np

from earnest.client.run.record import LogPosition
from earnest.demo.attacks.trainers import Forgery, make_attack
from earnest.demo.attacks.workshop import Workshop
from earnest.protocol import step
from earnest.protocol.manifest import Manifest
from earnest.protocol.merkle import content_root, samples_root
from earnest.protocol.recipe import Recipe
from earnest.protocol.seed import fallback_seed, round_seed
from earnest.training.codecs import Codec, PayloadError, Update, make_codec
from earnest.training.diloco.clip_and_aggregate import aggregate
from earnest.training.diloco.engine import TrainerState, train_round
from earnest.training.diloco.initial import initial_state
from earnest.training.diloco.outer_step import outer_step
from earnest.training.diloco.state import state_root
from earnest.training.tasks.task import Task
from earnest.validator.judge import History, Judgement, RoundInputs, Submission, judge_round
from earnest.validator.payload import Rejection, check_update

RUN = 1

_trained: dict[Any, tuple[bytes, TrainerState]] = {}
"""Payload, and the trainer's state afterwards, of everything that determines a round's training."""


def trainer_address(seat: int) -> str:
    return f"0x{seat + 1:040x}"


class Arena:
    """Plays the rounds of one run; seat i follows the attack `attacks[i]`, `none` being honest."""

    def __init__(self, task: Task, recipe: Recipe, attacks: Sequence[str], rounds: int) -> None:
        self.task, self.recipe, self.rounds = task, recipe, rounds
        self.attacks = [make_attack(name) for name in attacks]
        self.partners = [tuple(i for i, other in enumerate(attacks) if other == name) for name in attacks]
        self.state = initial_state(task, recipe)
        self.codec = make_codec(recipe.codec, self.state.spec)
        self.pool, self.seed = recipe.sample_pool(), fallback_seed(RUN, 0)
        self.trainers = [TrainerState() for _ in attacks]
        self.honest: list[dict[int, bytes]] = [{} for _ in attacks]
        self.published: list[dict[int, bytes]] = [{} for _ in attacks]
        self.history = History()
        self.round = 0

    def train(self) -> RoundInputs:
        """Has every trainer train and publish; returns the inputs of the judge."""
        seats, root = range(len(self.attacks)), state_root(self.state)
        samples = self.pool.assign(self.seed, seats)
        seed = round_seed(bytes(31) + bytes([self.round + 1]), bytes(32), self.recipe.seed, self.round)
        limit = self.state.clip_norm
        submissions = []
        for seat in seats:
            payload = self._payload(seat, samples.assigned, limit)
            if payload is not None:
                submissions.append(self._submission(seat, payload, root, samples.assigned[seat]))
        inputs = RoundInputs(
            recipe=self.recipe,
            task=self.task,
            round=self.round,
            rounds=self.rounds,
            trainer_limit=len(self.attacks),
            base_root=root,
            newest=self.state,
            newest_root=root,
            clip_norm=limit,
            seed=seed,
            submissions=tuple(submissions),
            assigned=samples.assigned,
            held_out=samples.held_out(seed),
            history=self.history,
        )
        self.seed = seed
        return inputs

    def advance(self, inputs: RoundInputs, judgement: Judgement) -> None:
        """Applies the accepted updates, as if all validators had reported this judgement."""
        consensus = [vote.counted_weight for vote in judgement.votes]
        shares = step.shares(consensus)
        if shares:
            updates = {seat: judgement.updates[seat].update for seat in shares}
            outer = self.recipe.outer
            gradient = aggregate(list(updates.items()), shares, inputs.clip_norm, outer.aggregation)
            stepped = outer_step(self.state, gradient, outer.lr, outer.momentum)
            norms = [(update.norm, consensus[seat]) for seat, update in updates.items()]
            self.state = replace(stepped, clip_norm=step.clip_norm(norms, inputs.clip_norm))
        self.history = judgement.history
        self.round += 1

    def play(self) -> Judgement:
        """Plays a round from training to the next state."""
        inputs = self.train()
        judgement = judge_round(inputs)
        self.advance(inputs, judgement)
        return judgement

    def _payload(self, seat: int, assigned: Mapping[int, Sequence[int]], limit: float) -> bytes | None:
        honest = self._train(seat, assigned[seat])
        self.honest[seat][self.round] = honest
        forgery = Forgery(
            round=self.round,
            codec=self.codec,
            honest=honest,
            clip_norm=limit,
            rng=np.random.default_rng([self.recipe.seed, seat, self.round]),
            own=self.honest[seat],
            others=self.published[(seat + 1) % len(self.attacks)],
            workshop=Workshop(
                task=self.task,
                recipe=self.recipe,
                state=self.state,
                round=self.round,
                rounds=self.rounds,
                assigned=assigned,
                seat=seat,
                partners=self.partners[seat],
            ),
        )
        payload = self.attacks[seat].forge(forgery)
        if payload is not None:
            self.published[seat][self.round] = payload
        return payload

    def _train(self, seat: int, ids: Sequence[int]) -> bytes:
        """Trains honestly and returns the payload. A round that any arena has trained before is looked up."""
        before = self.trainers[seat]
        key = (
            self.recipe.hash(),
            state_root(self.state),
            tuple(ids),
            self.round,
            self.rounds,
            before.to_bytes(),
        )
        if key not in _trained:
            after = deepcopy(before)
            local = train_round(self.task, self.recipe, self.state, ids, self.round, self.rounds, after)
            encoded = self.codec.encode(local.pseudo_gradient, after.codec)
            after.codec = encoded.state
            _trained[key] = (encoded.payload, after)
        payload, after = _trained[key]
        self.trainers[seat] = deepcopy(after)
        return payload

    def with_payload(self, submission: Submission, payload: bytes) -> Submission:
        """Returns the submission with another payload, committed to."""
        manifest = replace(submission.manifest, update=content_root(payload), size=len(payload))
        return replace(submission, manifest=manifest, update=decoded(self.codec, payload))

    def _submission(self, seat: int, payload: bytes, root: bytes, ids: Sequence[int]) -> Submission:
        manifest = Manifest(
            run=RUN,
            round=self.round,
            trainer=trainer_address(seat),
            base_state=root,
            update=content_root(payload),
            samples=samples_root(ids),
            trace=bytes(32),
            steps=self.recipe.inner.steps,
            tokens=0,
            size=len(payload),
        )
        return Submission(seat, manifest, LogPosition(100 + self.round, seat), decoded(self.codec, payload))


def decoded(codec: Codec, payload: bytes) -> Update | Rejection:
    """The payload as a validator's node passes it to the judge."""
    try:
        return check_update(codec.decode(payload))
    except PayloadError as error:
        return check_update(error)
