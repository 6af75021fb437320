"""Options that many commands share. Each can also be set as EARNEST_<NAME> or in earnest.toml.

The docstrings of the fields are the help texts of the options.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from earnest.cli.environment import Environment
from earnest.cli.settings import Settings
from earnest.protocol.constants import MAX_TRAINERS

OUTPUT = Group("Output", sort_key=50)
CHAIN = Group("Chain", sort_key=40)
ACCOUNT = Group("Account and consent", sort_key=30)
PROCESSES = Group("Several processes", sort_key=36)
SERVING = Group("Serving and logs", sort_key=35)

Hidden = Parameter(show=False, negative="")
NOT_SETTINGS = frozenset({"json", "yes", "dry_run", "environment"})


@Parameter(name="*")
@dataclass(frozen=True)
class Flags:
    """Options of every command."""

    json: Annotated[bool, Parameter(group=OUTPUT, negative="", show_default=False)] = False
    """Print exactly one JSON document on stdout; all else goes to stderr."""

    config: Annotated[Path | None, Parameter(group=OUTPUT)] = None
    """TOML file with settings (default: earnest.toml in the working folder, if it exists)."""

    data_dir: Annotated[Path | None, Parameter(group=OUTPUT)] = None
    """Folder for keys, journals, objects and local manifests (default: ~/.earnest)."""

    yes: Annotated[bool, Hidden] = False
    dry_run: Annotated[bool, Hidden] = False
    """Accepted by every command, so that a script can always give them; used only by commands that send."""

    environment: Annotated[Environment, Parameter(parse=False)] = field(default_factory=Environment)

    def settings(self) -> Settings:
        """Merges flags, environment variables and the settings file, in this order. Raises SettingsError."""
        flags = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in NOT_SETTINGS}
        return Settings.load({name: value for name, value in flags.items() if value not in (None, ())})


@Parameter(name="*")
@dataclass(frozen=True)
class KeyFlags(Flags):
    """Options of commands that write a key file."""

    password_file: Annotated[Path | None, Parameter(group=ACCOUNT)] = None
    """File whose first line is the new password (default: EARNEST_PASSWORD, else a prompt)."""


@Parameter(name="*")
@dataclass(frozen=True)
class ChainFlags(Flags):
    """Options of commands that read the chain."""

    network: Annotated[str | None, Parameter(group=CHAIN)] = None
    """Name of the network: devnet, anvil, sepolia, base-sepolia, hoodi, 0g-galileo (default: devnet)."""

    rpc: Annotated[tuple[str, ...] | None, Parameter(group=CHAIN, negative="")] = None
    """Endpoint URL; repeat it for several, in order of preference (default: EARNEST_RPC_<NETWORK>)."""

    manifest: Annotated[Path | None, Parameter(group=CHAIN)] = None
    """Manifest file of the deployment (default: the network's)."""

    confirmations: Annotated[int | None, Parameter(group=CHAIN)] = None
    """A block is final once it is this many blocks below the newest (default: the network's)."""


@Parameter(name="*")
@dataclass(frozen=True)
class AccountFlags(ChainFlags):
    """Options of commands that need an account, but send nothing."""

    keystore: Annotated[Path | None, Parameter(group=ACCOUNT)] = None
    """Key file, or a name from `earnest keys list` (default: the key, if there is only one)."""

    password_file: Annotated[Path | None, Parameter(show=False)] = None


@Parameter(name="*")
@dataclass(frozen=True)
class SendFlags(AccountFlags):
    """Options of commands that send transactions."""

    password_file: Annotated[Path | None, Parameter(group=ACCOUNT)] = None
    """File whose first line is the key's password (default: EARNEST_PASSWORD, else a prompt)."""

    yes: Annotated[bool, Parameter(group=ACCOUNT, negative="", show_default=False)] = False
    """Send without asking for confirmation. Local networks never ask."""

    dry_run: Annotated[bool, Parameter(group=ACCOUNT, negative="", show_default=False)] = False
    """Show the decoded calls, their gas and cost, and the balance after; send nothing."""


@Parameter(name="*")
@dataclass(frozen=True)
class ServeFlags(SendFlags):
    """Options of commands that make objects public."""

    serve: Annotated[str | None, Parameter(group=SERVING)] = None
    """HOST:PORT to serve this account's public objects on."""

    public_url: Annotated[str | None, Parameter(group=SERVING)] = None
    """URL at which others fetch them (default: http://HOST:PORT)."""


@Parameter(name="*")
@dataclass(frozen=True)
class NodeFlags(ServeFlags):
    """Options of the two nodes."""

    log_level: Annotated[Literal["debug", "info", "warning", "error"] | None, Parameter(group=SERVING)] = None
    """Lowest level that is logged to stderr (default: info)."""

    log_format: Annotated[Literal["text", "json"] | None, Parameter(group=SERVING)] = None
    """Format of the log, one line per event (default: text)."""


RunNumber = Annotated[int, Parameter(validator=Number(gte=1, lt=1 << 64))]
SeatNumber = Annotated[int, Parameter(validator=Number(gte=0, lt=MAX_TRAINERS))]


@Parameter(name="*")
@dataclass(frozen=True)
class LayoutFlags:
    """Options of a trainer that runs in several processes (docs/parallel.md)."""

    layout: Annotated[str | None, Parameter(group=PROCESSES)] = None
    """Train in several processes: pp4-mb8 (pipeline), dp2 (copies), fsdp2 (shards), pp2-dp2 (default: one process)."""

    hosts: Annotated[int, Parameter(group=PROCESSES, validator=Number(gte=1))] = 1
    """Number of hosts; on all but this one you start torchrun yourself."""

    processes_here: Annotated[int | None, Parameter(group=PROCESSES, validator=Number(gte=1))] = None
    """Processes on this host (default: an equal share of them)."""

    meet: Annotated[str, Parameter(group=PROCESSES)] = ""
    """HOST:PORT of this host in the hosts' private network, where the processes connect."""

    step_timeout: Annotated[float, Parameter(group=PROCESSES, validator=Number(gt=0))] = 300.0
    """Seconds without progress after which a process counts as dead."""
