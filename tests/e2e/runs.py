"""A small run for the end-to-end tests: opened by a sponsor, joined by residents, played window by window."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from earnest.protocol.run import Role
from tests.anvil import free_port
from tests.e2e.processes import COIN, Actor, Process, Town, Watch

RUN_FILE = """
rounds = {rounds}
start_in_s = 1200
trainers = 3
validators = 2
[pool]
trainer = "40"
validator = "12"
[bond]
trainer = "100"
validator = "1000"
[windows]
commit_s = 120
reveal_s = 120
report_commit_s = 120
report_reveal_s = 120
settle_s = 480
contest_s = 120
exit_delay_s = 90000
[admission]
open_trainers = true
validators = [{validators}]
[recipe]
task = "earnest.training.tasks.shakespeare:Shakespeare"
pool_size = 1200
[recipe.task_options]
layers = 1
width = 16
context = 16
[recipe.inner]
steps = 10
batch = 8
lr = 3e-3
[recipe.scoring]
held_out = 32
own = 32
trial_rounds = 0
"""
AT_ONCE = 3
"""Commands that run side by side; opening a key file takes each a quarter of a gigabyte."""

BOND = {Role.TRAINER: 100 * COIN, Role.VALIDATOR: 1_000 * COIN}


@dataclass
class Seat:
    """A resident with a seat, and the node that works for it. Killed, it is started again by the same command."""

    role: Role
    index: int
    actor: Actor
    settings: dict[str, str] = field(default_factory=dict)
    nodes: list[Process] = field(default_factory=list)
    flags: tuple[str, ...] = ()
    """Of the node's command, beside what every node's has."""

    @property
    def node(self) -> Process:
        return self.nodes[-1]

    def work(self, run: int) -> None:
        command = (self.role.name.lower(), "start", str(run), "--poll", "1", *self.flags)
        self.nodes.append(self.actor.spawn(*command, **self.settings))

    def at_work(self) -> None:
        self.node.says("at work")


def settle_in(town: Town, names: Sequence[str]) -> tuple[Actor, list[Actor]]:
    """The contracts, and a sponsor with tokens; residents of these names, with coins for gas and a bond's tokens."""
    sponsor = town.sponsor()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        deployed = pool.submit(sponsor.earnest, "deploy", "run")
        people = list(pool.map(town.resident, names))
        deployed.result()
    sponsor.earnest("token", "mint", "100000")
    token = town.deployment().contracts.token
    calls = [token.transfer(one.address, max(BOND.values())) for one in people]
    town.send([(one.address, COIN, b"") for one in people] + [(call.to, 0, call.data) for call in calls])
    return sponsor, people


def open_run(sponsor: Actor, rounds: int, validators: Sequence[Actor], terms: str = "") -> Process:
    """Opens a run and leaves its files served; the process says which run it is. `terms`: more lines of its file."""
    listed = ", ".join(f'"{one.address}"' for one in validators)
    path = sponsor.folder / f"run-{rounds}.toml"
    path.write_text(terms + RUN_FILE.format(rounds=rounds, validators=listed))
    return sponsor.spawn("run", "create", str(path), serve=f"127.0.0.1:{free_port()}")


def join(run: int, role: Role, people: Sequence[Actor]) -> list[Seat]:
    """Takes a seat for each."""

    def take(one: Actor) -> Seat:
        joined = one.earnest("run", "join", str(run), "--role", role.name.lower())
        return Seat(role, joined["seat"], one)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(take, people))


def earned(watch: Watch, seat: Seat) -> int:
    """Wei earned: what is idle in the vault, since everybody bonds all that they deposit."""
    return watch.contracts.vault.idle(seat.actor.address, at=watch.look())


def bond_of(watch: Watch, seat: Seat) -> int:
    """Wei."""
    contracts = watch.contracts
    return contracts.vault.bond_of(
        contracts.settlement.address, watch.record.run, seat.actor.address, at=watch.look()
    )
