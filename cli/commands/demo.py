"""`earnest demo`: options, progress and pictures around `earnest.demo.demo`."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from earnest.attestation.roots import SIMULATED_WARNING
from earnest.cli.exits import UsageError
from earnest.cli.flags import Flags
from earnest.cli.output import Answer, console
from earnest.cli.session import Session

PLAIN = Flags()
Attack = Literal["none", "sign-flip", "noise", "zero", "copy", "stale", "scaled", "malformed", "absent"]


def demo(
    *,
    verification: Literal["incentive", "attested"] = "incentive",
    attack: Attack | None = None,
    lying_validator: Annotated[bool, Parameter(negative="")] = False,
    rounds: int | None = None,
    trainers: int | None = None,
    validators: int = 3,
    codec: Literal["dense-bf16", "topk-2bit"] = "dense-bf16",
    seed: int = 0,
    output: Path = Path("earnest-demo"),
    verbose: Annotated[bool, Parameter(negative="")] = False,
    flags: Flags = PLAIN,
) -> Answer | None:
    """Play a whole run on an embedded chain: real contracts, real models, real text, one trainer that cheats.

    Needs no key, no network and no GPU; about two minutes on two cores. The same seed gives the same roots.

    Example: earnest demo --attack copy --seed 1

    Parameters
    ----------
    verification
        attested: only what an enclave signed counts, and the last three trainers cheat with theirs: one swaps its code,
        one shows an old quote, one submits what its enclave did not compute. The enclaves are SIMULATED.
    attack
        What the last trainer does instead of honest work, where verification is by incentives (default: sign-flip).
    lying_validator
        Let the last validator turn its scores upside down.
    rounds
        Rounds to play (default: 6; attested 4).
    trainers
        Trainers, at least 2; attested 5, three of which cheat (default: 4; attested 6).
    validators
        Validators.
    codec
        How updates are encoded: dense, or a hundred times smaller.
    seed
        Everything random follows it.
    output
        Folder for the picture demo.png, demo.json and the nodes' files.
    verbose
        Log what the nodes do to stderr.
    """
    from earnest.demo.demo import DemoOptions, set_up
    from earnest.demo.view import draw, keys_table, round_table, show

    attested = verification == "attested"
    if attested and attack is not None:
        raise UsageError("the attested demo has its own three cheats", "leave --attack out")
    rounds, trainers = _or(rounds, 4 if attested else 6), _or(trainers, 6 if attested else 4)
    least = 5 if attested else 2
    if rounds < 1 or trainers < least or not 1 <= validators <= 16 or seed < 0:
        raise UsageError(
            f"the demo needs a round, {least} trainers and 1 to 16 validators", "correct the numbers"
        )
    attack = "none" if attested else attack or "sign-flip"
    options = DemoOptions(
        output, seed, attack, lying_validator, codec, rounds, trainers, validators, attested
    )
    with Session(flags) as session, ExitStack() as stack:
        _quiet(session, verbose)
        output.mkdir(parents=True, exist_ok=True)
        if attested:
            session.notice(SIMULATED_WARNING)
        progress = stack.enter_context(_Progress(session, rounds))
        out = None if flags.json else console(session.environment.stdout)

        def on_round(report: dict[str, Any]) -> None:
            progress.closed(report["round"])
            if out is not None and report["round"] == 0 and (found := demo_world.attestation()):
                out.print(keys_table(found))
            if out is not None:
                out.print(round_table(report, report["dense_bytes"]))

        demo_world = stack.enter_context(set_up(options))
        progress.began()
        result = demo_world.play(on_round)
        picture = output / "demo.png"
        draw(result, picture)
        (output / "demo.json").write_text(json.dumps(result, indent=2) + "\n")
    if out is None:
        return Answer(result | {"picture": str(picture)})
    show(out, result, picture)
    return None


def _or(given: int | None, default: int) -> int:
    return default if given is None else given


def _quiet(session: Session, verbose: bool) -> None:
    from earnest.base.logs import configure_logs

    configure_logs(
        session.environment.stderr, session.environment.clock, level="info" if verbose else "error"
    )


class _Progress:
    """On stderr, what is being waited for: a bar over rounds or, where stderr is no terminal, a line for each."""

    def __init__(self, session: Session, rounds: int) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._session = session
        self._rounds = rounds
        self._bar = None
        if session.environment.stderr.isatty():
            columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
            self._bar = Progress(*columns, console=console(session.environment.stderr), transient=True)
            self._task = self._bar.add_task("setting up", total=rounds)

    def __enter__(self) -> _Progress:
        if self._bar is None:
            self._session.notice("setting up ...")
        else:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def began(self) -> None:
        """The run is set up; its first round is on."""
        self._say(0)

    def closed(self, round: int) -> None:
        """This round is settled; the next is on."""
        self._say(round + 1)

    def _say(self, done: int) -> None:
        what = (
            f"round {done}: training and judging" if done < self._rounds else "last contests and the refund"
        )
        if self._bar is None:
            self._session.notice(f"{what} ...")
        else:
            self._bar.update(self._task, completed=done, description=what)
