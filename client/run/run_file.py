"""The run file that a sponsor writes: a TOML file with a run's terms and recipe, converted into its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from math import ceil
from pathlib import Path
from typing import Any, Literal

import msgspec

from earnest.attestation.policy_file import PolicyFile
from earnest.base.addresses import checked_address
from earnest.base.amounts import parse_amount
from earnest.base.errors import EarnestError
from earnest.base.strict_json import check_depth, read_json, write_json
from earnest.protocol.assignment import HELD_OUT_SETS
from earnest.protocol.merkle import admission_root
from earnest.protocol.penalties import PenaltyTerms
from earnest.protocol.recipe import Recipe, RecipeError
from earnest.protocol.run import ZERO_HASH, Level, Role, RunParams

FINALITY_FACTOR = 2
MAX_RUN_FILE_BYTES = 1 << 20
SETUP_BLOCKS = 5
"""Blocks that opening a run may take: four transactions in sequence."""

WINDOW_BLOCKS = 5
"""Blocks that every window must have room for."""

LEAST_VALIDATORS = 3
"""With fewer, one validator has half of the stake: it can void every round, or decide alone."""

HONEST_WEIGHT = 0.6
"""Weight of an honest trainer's average update."""


class RunFileError(EarnestError):
    """An invalid run file, or terms that no run can have."""


Tokens = str | int
"""An amount of the token; a fraction is written as text, since a TOML float would be rounded."""


Verification = Literal["incentive", "attested", "optional"]
LEVELS = {"incentive": Level.INCENTIVE, "attested": Level.ATTESTED, "optional": Level.OPTIONAL}
"""Levels by their name in the file: attestations are refused, required, or optional."""


class _PerRole(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    trainer: Tokens
    validator: Tokens


class _Pool(_PerRole, forbid_unknown_fields=True, frozen=True):
    full_seats: int | None = None
    """Seats of full weight from which the trainers' pool is paid out in full; all seats if omitted."""


class _Bond(_PerRole, forbid_unknown_fields=True, frozen=True):
    validator_max: Tokens | None = None
    """Largest part of a validator's bond that counts; the minimum bond if omitted: one seat, one vote."""


class _Windows(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    commit_s: int
    reveal_s: int
    report_commit_s: int
    report_reveal_s: int
    settle_s: int
    contest_s: int
    exit_delay_s: int
    overlap: bool = False


class _Admission(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    validators: list[str]
    trainers: list[str] = []
    open_trainers: bool = False


_Penalties: Any = msgspec.defstruct(
    "_Penalties",
    [
        ("ceiling", Tokens | None, None) if field.name == "ceiling" else (field.name, int, field.default)
        for field in fields(PenaltyTerms)
    ],
    forbid_unknown_fields=True,
    frozen=True,
)
"""The fields and defaults of `PenaltyTerms`, with the ceiling in tokens."""


class RunFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The tables of a run file, parsed but not validated. Amounts are in tokens, times in seconds."""

    rounds: int
    start_in_s: int
    trainers: int
    validators: int
    pool: _Pool
    bond: _Bond
    windows: _Windows
    admission: _Admission
    recipe: dict[str, Any]
    penalties: _Penalties = _Penalties()  # pyright: ignore[reportInvalidTypeForm]
    verification: Verification = "incentive"
    attestation_policy: str | None = None
    """Path of a policy file, relative to the run file."""

    @staticmethod
    def read(path: Path) -> RunFile:
        """Raises RunFileError with the offending key."""
        try:
            with path.open("rb") as file:
                content = file.read(MAX_RUN_FILE_BYTES + 1)
            if len(content) > MAX_RUN_FILE_BYTES:
                raise RunFileError(
                    f"{path} has more than {MAX_RUN_FILE_BYTES} bytes", "give the path of a run file"
                )
            check_depth(content)
            _check_level(content)
            parsed = msgspec.toml.decode(content, type=RunFile)
            policy = parsed.attestation_policy
            return parsed.changed(
                {"attestation_policy": None if policy is None else str(path.parent / policy)}
            )
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise RunFileError(
                f"{path} is not a run file: {error}", "see `earnest run create --example`"
            ) from error
        except OSError as error:
            raise RunFileError(
                f"{path} cannot be read: {error.strerror}", "give the path of a run file"
            ) from error

    def changed(self, given: Mapping[str, Any]) -> RunFile:
        """Returns the file with the values of flags in place of its own; a flag that is None was not given."""
        return msgspec.structs.replace(self, **{k: v for k, v in given.items() if v is not None})

    def admitted(self) -> tuple[tuple[str, Role], ...]:
        """Returns the admission list, trainers first. Raises AddressError, or RunFileError for a duplicate."""
        listed = [(a, Role.TRAINER) for a in self.admission.trainers]
        listed += [(a, Role.VALIDATOR) for a in self.admission.validators]
        admitted = tuple((checked_address(account), role) for account, role in listed)
        accounts = [account for account, _ in admitted]
        if twice := next((account for account in accounts if accounts.count(account) > 1), None):
            raise RunFileError(
                f"{twice} is on the admission list twice", "an account has one seat in a run, so list it once"
            )
        if Role.VALIDATOR not in {role for _, role in admitted}:
            raise RunFileError("the run admits no validator", "list at least one under [admission]")
        return admitted

    def read_policy(self) -> PolicyFile | None:
        """Returns the attestation policy; None if the run has none. Raises RunFileError or PolicyFileError."""
        if (self.verification == "incentive") != (self.attestation_policy is None):
            names = "no" if self.attestation_policy is None else "an"
            raise RunFileError(
                f'the run file names {names} attestation_policy, its verification is "{self.verification}"',
                'with verification = "attested" or "optional" give the path of a policy file, else none',
            )
        return None if self.attestation_policy is None else PolicyFile.read(Path(self.attestation_policy))

    def make_recipe(self) -> Recipe:
        """Returns the recipe, with the defaults of `earnest.protocol.recipe` for missing keys.

        `pool_size` and `max_payload_bytes` come from task and codec unless given. Raises RunFileError, or TaskError
        for a task that is not installed.
        """
        from earnest.training.codecs import make_codec
        from earnest.training.diloco.state import Spec, read_parameters
        from earnest.training.tasks.task import load_task

        task = load_task(str(self.recipe.get("task", "")), self.recipe.get("task_options", {}))
        try:
            plain = Recipe(task=str(self.recipe["task"]), pool_size=task.pool_size)
            document = _merged(read_json(plain.to_json()), self.recipe, "recipe")
            recipe = Recipe.from_json(write_json(document))
            recipe.sample_pool().check(self.trainers)
        except (RecipeError, ValueError) as error:
            raise RunFileError(f"the recipe cannot be used: {error}", "correct it in the run file") from error
        if (recipe.overlap != "none") != self.windows.overlap:
            rounds = "overlap" if self.windows.overlap else "do not overlap"
            raise RunFileError(
                f'the rounds {rounds}, but the recipe says overlap = "{recipe.overlap}"',
                'with windows.overlap = true say recipe.overlap = "eager" or "delayed", without it "none"',
            )
        if recipe.data == "private" and self.admission.open_trainers and self.verification == "incentive":
            raise RunFileError(
                "trainers on private data are not judged by what they trained on, and anyone may join this run",
                "list the trainers (open_trainers = false), or take attested ones only",
            )
        if recipe.pool_size > task.pool_size:
            raise RunFileError(
                f"the task has {task.pool_size} samples, the recipe names {recipe.pool_size}",
                "leave pool_size out to take all",
            )
        if "max_payload_bytes" not in self.recipe:
            layout = Spec.of(read_parameters(task.build_model(recipe.seed)))
            recipe = replace(recipe, max_payload_bytes=make_codec(recipe.codec, layout).payload_bytes)
        return recipe

    def params(
        self,
        recipe: Recipe,
        initial_state: bytes,
        now: int,
        decimals: int,
        policy: PolicyFile | None = None,
    ) -> RunParams:
        """Returns the parameters of a run created at block time `now`; `policy` as read. Raises AmountError."""

        def wei(amount: Tokens) -> int:
            return parse_amount(str(amount), decimals)

        windows, admission = msgspec.structs.asdict(self.windows), self.admitted()
        exit_delay = windows.pop("exit_delay_s")
        penalties = msgspec.structs.asdict(self.penalties)
        ceiling = penalties.pop("ceiling")
        return RunParams(
            start=now + self.start_in_s,
            rounds=self.rounds,
            trainer_limit=self.trainers,
            validator_limit=self.validators,
            trainer_pool=wei(self.pool.trainer),
            validator_pool=wei(self.pool.validator),
            trainer_min_bond=wei(self.bond.trainer),
            validator_min_bond=wei(self.bond.validator),
            validator_max_stake=wei(self.bond.validator_max or self.bond.validator),
            exit_delay=exit_delay,
            full_seats=self.trainers if self.pool.full_seats is None else self.pool.full_seats,
            verification=LEVELS[self.verification],
            attestation_policy=ZERO_HASH if policy is None else policy.hash,
            open_trainers=self.admission.open_trainers,
            admission_root=admission_root(admission),
            recipe_hash=recipe.hash(),
            initial_state=initial_state,
            **({} if ceiling is None else {"ceiling": wei(ceiling)}),
            **windows,
            **penalties,
        )


def check_params(params: RunParams, now: int, block_time_s: float, finality_s: float) -> None:
    """Raises RunFileError for terms that the contract or this network's finality rules out."""
    problems = params.problems()
    schedule = params.schedule()
    if params.exit_delay < (delay := schedule.least_exit_delay):
        problems.append(f"exit_delay_s is {params.exit_delay}, these windows need at least {delay}")
    earliest = schedule.period + SETUP_BLOCKS * ceil(block_time_s)
    if params.start < now + earliest:
        problems.append(f"start_in_s is {params.start - now}, joining needs at least {earliest}")
    problems += window_problems(params, block_time_s, finality_s)
    if problems:
        raise RunFileError(
            f"no run can have these terms: {'; '.join(problems)}",
            "correct the run file; docs/reverts.md lists the limit of each term",
        )


def window_problems(params: RunParams, block_time_s: float, finality_s: float) -> list[str]:
    """Returns the windows of a run that are too short for a network's blocks and finality; empty if none.

    A node acts on final blocks, so R, S, V and G need twice the finality; every window needs a few blocks. Check a
    run before joining it: what misses a window is charged, or not paid.
    """
    final = FINALITY_FACTOR * finality_s
    blocks = WINDOW_BLOCKS * block_time_s
    needs = dict.fromkeys(("reveal_s", "report_commit_s", "report_reveal_s", "settle_s"), max(final, blocks))
    needs |= dict.fromkeys(("commit_s", "contest_s"), blocks)
    return [
        f"{name} is {getattr(params, name)}, this network's blocks and finality need at least {least:g}"
        for name, least in needs.items()
        if getattr(params, name) < least
    ]


def remarks(params: RunParams, recipe: Recipe, policy: PolicyFile | None = None) -> list[str]:
    """Returns warnings for the sponsor to read before paying, a sentence each."""
    full = params.full_seats
    sentences = [
        f"The trainer pool is paid out in full from a summed weight of {full} on; below it a seat of weight 1 is paid"
        f" 1/{full} of the pool, and the rest comes back. An honest seat's weight is about {HONEST_WEIGHT:g}."
    ]
    seats = params.trainer_limit * recipe.samples_per_seat
    fresh = (recipe.pool_size - HELD_OUT_SETS * recipe.scoring.held_out) // seats
    if fresh < params.rounds:
        sentences.append(
            f"With every seat taken the pool lasts {fresh} rounds; after that samples repeat, also those that judge."
        )
    if params.validator_limit < LEAST_VALIDATORS:
        sentences.append(
            f"With {params.validator_limit} validator seats, one validator can void every round: take at least "
            f"{LEAST_VALIDATORS}."
        )
    if params.validator_max_stake > params.validator_min_bond:
        sentences.append(
            "One validator can outvote the others with a larger bond: validator_max_stake is above the minimum bond."
        )
    if policy is not None:
        sentences.append(f"Keys are taken from machines under this root: {policy.root_name}.")
    return sentences


def paid_share(params: RunParams) -> float:
    """Returns the share of the trainer pool that honest trainers are paid if every seat is taken."""
    return min(1.0, HONEST_WEIGHT * params.trainer_limit / params.full_seats)


def _check_level(content: bytes) -> None:
    """Raises ValueError for an unknown level, naming the known ones."""
    level = msgspec.toml.decode(content, type=dict[str, Any]).get("verification", "incentive")
    if not isinstance(level, str) or level not in LEVELS:
        raise ValueError(f"verification = {level!r}; choose one of {', '.join(map(repr, LEVELS))}")


def _merged(base: dict[str, Any], changes: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Returns `base` with the changes applied, table by table. Raises RecipeError for unknown keys."""
    merged = dict(base)
    for key, value in changes.items():
        if key not in base:
            raise RecipeError(f"{path}: unknown key {key!r}")
        inner = base[key]
        tables = isinstance(inner, dict) and isinstance(value, dict) and key != "task_options"
        merged[key] = _merged(inner, value, f"{path}.{key}") if tables else value
    return merged
