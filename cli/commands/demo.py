"""`earnest demo`: options and progress of `earnest.demo.play`."""

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


def demo(
    *,
    verification: Literal["incentive", "attested"] = "incentive",
    attack: str | None = None,
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
    """Play a whole run on an embedded chain: real contracts, real models, real text, and one trainer that cheats.

    Needs no key, no network and no GPU, and takes about two minutes on two cores. The same seed gives the same roots.

    Example: earnest demo --attack copy --seed 1

    Parameters
    ----------
    verification
        attested: only updates that an enclave signed count. The last three trainers cheat with their enclaves: one
        swaps its code, one shows an old quote, one submits an update that its enclave did not compute. All enclaves
        are SIMULATED.
    attack
        How the last trainer cheats, where verification is by incentives (default: sign-flip): none, sign-flip, noise,
        zero, copy, stale, scaled, malformed, absent, dust, framing, framing-sparse, half-steps, tuned-half, straggler,
        split-2, split-4, disguise, backdoor, or a class of your own as package.module:Class. Dust, split-2 and
        disguise take two seats, split-4 four.
    lying_validator
        Let the last validator reverse its scores.
    rounds
        Rounds to play (default: 6; attested 4).
    trainers
        Number of trainers, at least one more than attack, or 5 in an attested demo (default: 4, or twice as many as
        attack; attested 6).
    validators
        Number of validators, 1 to 16.
    codec
        Codec of the updates. topk-2bit makes them a hundred times smaller.
    seed
        Seed of everything random.
    output
        Folder for demo.png (picture), demo.json (result) and the nodes' files.
    verbose
        Show the nodes' logs on stderr.
    """
    from earnest.demo.attacks.trainers import AttackError, make_attack
    from earnest.demo.options import DemoOptions
    from earnest.demo.play import set_up
    from earnest.demo.view import draw, keys_table, round_table, show

    attested = verification == "attested"
    if attested and attack is not None:
        raise UsageError("an attested demo has its own three cheats", "leave out --attack")
    if rounds is None:
        rounds = 4 if attested else 6
    attack = "none" if attested else attack or "sign-flip"
    try:
        seats = make_attack(attack).seats
    except AttackError as error:
        raise UsageError(error.cause, error.fix) from error
    if trainers is None:
        trainers = 6 if attested else max(4, 2 * seats)
    least = 5 if attested else seats + 1
    if rounds < 1 or trainers < least or not 1 <= validators <= 16 or seed < 0:
        raise UsageError(
            f"the demo needs at least 1 round, at least {least} trainers, 1 to 16 validators and a seed of 0 or more",
            "correct the numbers",
        )
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
            if out is not None:
                if report["round"] == 0 and (attestation := demo.result.attestation()):
                    out.print(keys_table(attestation))
                out.print(round_table(report, report["dense_bytes"]))

        demo = stack.enter_context(set_up(options))
        progress.began()
        result = demo.play(on_round)
        picture = output / "demo.png"
        draw(result, picture)
        (output / "demo.json").write_text(json.dumps(result, indent=2) + "\n")
    if out is None:
        return Answer(result | {"picture": str(picture)})
    show(out, result, output)
    return None


def _quiet(session: Session, verbose: bool) -> None:
    from earnest.base.logs import configure_logs

    configure_logs(
        session.environment.stderr, session.environment.clock, level="info" if verbose else "error"
    )


class _Progress:
    """Shows progress on stderr: a bar over the rounds or, where stderr is not a terminal, a line for each."""

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
        """Shows that the run is set up and its first round has begun."""
        self._say(0)

    def closed(self, round: int) -> None:
        """Shows that this round is settled and the next has begun."""
        self._say(round + 1)

    def _say(self, done: int) -> None:
        ended = done >= self._rounds
        what = "last contests and the refund" if ended else f"round {done}: training and judging"
        if self._bar is None:
            self._session.notice(f"{what} ...")
        else:
            self._bar.update(self._task, completed=done, description=what)
