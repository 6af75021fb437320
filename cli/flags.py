"""Options that many commands share. Each can also be set as EARNEST_<NAME> or in earnest.toml."""

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
    """What every command takes."""

    json: Annotated[bool, Parameter(group=OUTPUT, negative="", show_default=False)] = False
    """Print exactly one JSON document on stdout; everything else goes to stderr."""

    config: Annotated[Path | None, Parameter(group=OUTPUT)] = None
    """TOML file with settings (default: earnest.toml, where there is one)."""

    data_dir: Annotated[Path | None, Parameter(group=OUTPUT)] = None
    """Folder for keys, journals, objects and local manifests (default: ~/.earnest)."""

    yes: Annotated[bool, Hidden] = False
    dry_run: Annotated[bool, Hidden] = False
    """Both are taken everywhere, so that a script can always give them; they mean something where money moves."""

    environment: Annotated[Environment, Parameter(parse=False)] = field(default_factory=Environment)

    def settings(self) -> Settings:
        """Flags over environment over file. Raises SettingsError."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in NOT_SETTINGS}
        return Settings.load({name: value for name, value in given.items() if value not in (None, ())})


@Parameter(name="*")
@dataclass(frozen=True)
class KeyFlags(Flags):
    """What commands take that write a key file."""

    password_file: Annotated[Path | None, Parameter(group=ACCOUNT)] = None
    """File whose first line is the new password (else EARNEST_PASSWORD, else asked for)."""


@Parameter(name="*")
@dataclass(frozen=True)
class ChainFlags(Flags):
    """What commands take that read the chain."""

    network: Annotated[str | None, Parameter(group=CHAIN)] = None
    """Network by name: devnet, anvil, sepolia, base-sepolia, hoodi, 0g-galileo (default: devnet)."""

    rpc: Annotated[tuple[str, ...] | None, Parameter(group=CHAIN, negative="")] = None
    """Endpoint URL; repeat it for more, in order of preference (else EARNEST_RPC_<NETWORK>)."""

    manifest: Annotated[Path | None, Parameter(group=CHAIN)] = None
    """The deployment's manifest (default: the one of the network)."""

    confirmations: Annotated[int | None, Parameter(group=CHAIN)] = None
    """Blocks under the head after which a block counts as final (default: the network's)."""


@Parameter(name="*")
@dataclass(frozen=True)
class AccountFlags(ChainFlags):
    """What commands take that speak of an account of ours."""

    keystore: Annotated[Path | None, Parameter(group=ACCOUNT)] = None
    """Key file, or the name of a key of `earnest keys list` (default: the only one there)."""

    password_file: Annotated[Path | None, Parameter(show=False)] = None


@Parameter(name="*")
@dataclass(frozen=True)
class SendFlags(AccountFlags):
    """What commands take that send transactions."""

    password_file: Annotated[Path | None, Parameter(group=ACCOUNT)] = None
    """File whose first line is the key's password (else EARNEST_PASSWORD, else asked for)."""

    yes: Annotated[bool, Parameter(group=ACCOUNT, negative="", show_default=False)] = False
    """Send without asking. Local networks never ask."""

    dry_run: Annotated[bool, Parameter(group=ACCOUNT, negative="", show_default=False)] = False
    """Show the decoded calls, their gas and cost and the balance after; send nothing."""


@Parameter(name="*")
@dataclass(frozen=True)
class ServeFlags(SendFlags):
    """What commands take that make objects public."""

    serve: Annotated[str | None, Parameter(group=SERVING)] = None
    """HOST:PORT on which this account's public objects are served."""

    public_url: Annotated[str | None, Parameter(group=SERVING)] = None
    """URL under which others reach them (default: http://HOST:PORT)."""


@Parameter(name="*")
@dataclass(frozen=True)
class NodeFlags(ServeFlags):
    """What the two nodes take."""

    log_level: Annotated[Literal["debug", "info", "warning", "error"] | None, Parameter(group=SERVING)] = None
    """Least level that is logged to stderr (default: info)."""

    log_format: Annotated[Literal["text", "json"] | None, Parameter(group=SERVING)] = None
    """A line of text or of JSON per event (default: text)."""


RunNumber = Annotated[int, Parameter(validator=Number(gte=1, lt=1 << 64))]
SeatNumber = Annotated[int, Parameter(validator=Number(gte=0, lt=MAX_TRAINERS))]


@Parameter(name="*")
@dataclass(frozen=True)
class LayoutFlags:
    """How several processes act as one trainer (docs/parallel.md)."""

    layout: Annotated[str | None, Parameter(group=PROCESSES)] = None
    """Train in several processes: pp4-mb8 (pipeline), dp2 (copies), fsdp2 (shards), pp2-dp2 (default: in this one)."""

    hosts: Annotated[int, Parameter(group=PROCESSES, validator=Number(gte=1))] = 1
    """Hosts that the processes run on; torchrun is started by hand on all but this one."""

    processes_here: Annotated[int | None, Parameter(group=PROCESSES, validator=Number(gte=1))] = None
    """Processes on this host (default: as many as on each of the others)."""

    meet: Annotated[str, Parameter(group=PROCESSES)] = ""
    """HOST:PORT of this host in the private network in which the hosts meet."""

    step_timeout: Annotated[float, Parameter(group=PROCESSES, validator=Number(gt=0))] = 300.0
    """Seconds without a sign of life after which a process is taken for dead."""
