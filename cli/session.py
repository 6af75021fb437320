"""One command's work place: settings, the chain, the deployment, the account. Each is opened when first asked for."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from earnest.base.addresses import checked_address
from earnest.base.amounts import brief, format_amount, parse_amount
from earnest.base.errors import KeystoreError
from earnest.base.logs import configure_logs
from earnest.cli.exits import UsageError
from earnest.cli.flags import Flags, NodeFlags, SendFlags
from earnest.cli.output import amounts, progress, safe
from earnest.cli.settings import Settings

if TYPE_CHECKING:
    from earnest.client.account.account import Account, DeployedContracts
    from earnest.client.chain.blockref import BlockRef
    from earnest.client.chain.contracts import Contracts
    from earnest.client.chain.endpoints import Chain
    from earnest.client.chain.signer import Signer
    from earnest.deploy.manifest import Manifest
    from earnest.deploy.networks import Network

COIN_DECIMALS = 18


class Session:
    """Opened from a command's flags; a context manager that gives leases and sockets back."""

    def __init__(self, flags: Flags) -> None:
        self.flags = flags
        self.environment = flags.environment
        self.settings: Settings = flags.settings()
        self._closing = ExitStack()
        self._account: Account | None = None
        self._finished = False
        configure_logs(self.environment.stderr, self.environment.clock, level="warning")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def notice(self, text: str) -> None:
        """A line for people, on stderr."""
        self.environment.stderr.write(safe(text) + "\n")
        self.environment.stderr.flush()

    # Chain

    @cached_property
    def network(self) -> Network:
        from earnest.deploy.networks import network

        return network(self.settings.network)

    @cached_property
    def urls(self) -> list[str]:
        return list(self.settings.rpc) or self.network.urls(os.environ)

    @cached_property
    def finality_blocks(self) -> int:
        given = self.settings.confirmations
        return self.network.finality_blocks if given is None else given

    @property
    def finality_s(self) -> float:
        """Seconds until a block is final, on average."""
        return self.finality_blocks * self.network.block_time_s

    @cached_property
    def chain(self) -> Chain:
        from earnest.client.chain.endpoints import Chain

        return Chain(self.urls, self.network.chain_id, self.finality_blocks)

    @cached_property
    def at(self) -> BlockRef:
        """The block that this command reads: the newest, once nothing that an earlier one has sent is under way."""
        self.finish_earlier()
        return self.chain.head()

    @cached_property
    def own_manifest(self) -> Path:
        """Where a deployment made by this user is recorded."""
        default = self.settings.data_dir / "manifests" / f"{self.network.name}.json"
        return self.settings.manifest or default

    @cached_property
    def manifest(self) -> Manifest:
        from importlib.resources import as_file, files

        from earnest.deploy.manifest import ManifestError, load_manifest

        bundled = files("earnest.deploy") / "manifests" / f"{self.network.name}.json"
        if self.settings.manifest is None and not self.own_manifest.exists() and bundled.is_file():
            with as_file(bundled) as path:
                found = load_manifest(path)
        else:
            found = load_manifest(self.own_manifest)
        if found.chain_id != self.network.chain_id:
            raise ManifestError(
                f"the manifest is of chain {found.chain_id}, {self.network.name} is {self.network.chain_id}",
                "choose the manifest's --network, or another --manifest",
            )
        if not found.current.complete:
            raise ManifestError("the deployment is not finished", "finish it: `earnest deploy run`")
        return found

    @cached_property
    def deployment(self) -> DeployedContracts:
        from earnest.client.account.account import DeployedContracts
        from earnest.client.chain.contracts import Contracts

        contracts = Contracts.at(self.chain, self.manifest.address("TrainingRuns"), self.chain.head())
        return DeployedContracts(self.chain, contracts, self.manifest.first_block)

    @property
    def contracts(self) -> Contracts:
        return self.deployment.contracts

    # Amounts

    @cached_property
    def decimals(self) -> int:
        return self.contracts.token.decimals(at=self.at)

    @cached_property
    def symbol(self) -> str:
        return safe(self.contracts.token.symbol(at=self.at))

    def wei(self, text: str) -> int:
        """An amount of the token as given on the command line."""
        return parse_amount(text, self.decimals)

    def tokens(self, wei: int) -> str:
        """An amount for people."""
        return f"{brief(format_amount(wei, self.decimals))} {self.symbol}"

    def amounts(self, name: str, wei: int) -> dict[str, str]:
        return amounts(name, wei, self.decimals)

    # Account

    @cached_property
    def keystore(self) -> Path:
        """The key file: a path, a name of `earnest keys list`, or the only key there."""
        folder = self.settings.data_dir / "keys"
        given = self.settings.keystore
        if given is not None:
            named = folder / f"{given}.json"
            return named if given.parent == Path() and not given.exists() and named.exists() else given
        keys = sorted(folder.glob("*.json"))
        if len(keys) != 1:
            told = f"there are {len(keys)} keys in {folder}" if keys else f"there is no key in {folder}"
            raise KeystoreError(told, "name one with --keystore, or make one with `earnest keys new NAME`")
        return keys[0]

    @cached_property
    def account(self) -> str:
        """The key file's address; needs no password."""
        from earnest.client.chain.signer import keystore_address

        return keystore_address(self.keystore)

    def address(self, given: str | None) -> str:
        """An address of the command line, checksummed; the account's own if none is given. Raises AddressError."""
        return self.account if given is None else checked_address(given)

    def password(self, prompt: str) -> str:
        """From the settings, else asked for. Raises UsageError where nobody can be asked."""
        given = self.settings.keystore_password()
        if given is not None:
            return given
        if not self.environment.interactive:
            raise UsageError("the key's password is needed", "give --password-file or EARNEST_PASSWORD")
        return self.environment.ask_password(prompt)

    @cached_property
    def signer(self) -> Signer:
        from earnest.client.chain.signer import Signer

        password = self.password(f"Password of {self.account}: ")
        with progress(self.environment.stderr, "opening the key file"):
            return Signer.load(self.keystore, password)

    def hold_key(self) -> None:
        """Takes the key's lease: one process at a time sends with one key, whatever its data folder."""
        from earnest.client.storage.lease import Lease

        path = self.keystore.with_name(f"{self.keystore.name}.lock")
        self._closing.enter_context(Lease(path, f"key {self.keystore}"))

    def folder(self, owner: str) -> Path:
        """Where an account's journal and objects are: apart for each deployment, restarted local chains included."""
        return self.deployment_folder / owner

    @property
    def deployment_folder(self) -> Path:
        """Where the folders of all accounts are."""
        birth = self.deployment.name.rpartition("/")[2]
        return self.settings.data_dir / f"{self.network.name}-{birth[:8]}"

    def finish_earlier(self) -> None:
        """Before a command that sends decides anything: waits for what an interrupted one has left under way."""
        sends = isinstance(self.flags, SendFlags) and not isinstance(self.flags, NodeFlags)
        if self._finished or not sends or self.flags.dry_run:
            return
        self._finished = True
        from earnest.client.account.commands import finish_earlier
        from earnest.client.storage.journal import Journal

        path = self.folder(self.account) / "journal.sqlite"
        if not path.exists():
            return
        with Journal(path, self.account, self.deployment.name) as journal:
            waiting = journal.open_intents()
        if waiting:
            for name in finish_earlier(self.open_account()):
                self.notice(f"an earlier transaction is mined: {name}")

    def open_account(self, owner: str | None = None) -> Account:
        """The account at work, opened once: takes the leases on key and journal."""
        if self._account is None:
            self._account = self._open_account(owner or self.account)
        return self._account

    def _open_account(self, owner: str) -> Account:
        from earnest.client.account.account import Account

        signer = self.signer
        self.hold_key()
        # An operator works in a folder of its own: its nonces are not the owner's, whose key stays free for commands.
        folder = self.folder(owner) if signer.address == owner else self.folder(owner) / signer.address
        return self._closing.enter_context(
            Account(
                self.deployment,
                signer,
                owner,
                folder,
                clock=self.environment.monotonic,
                sleep=self.environment.sleep,
            )
        )

    # Objects

    @property
    def public_folder(self) -> Path:
        """The account's objects that are served to everyone."""
        return self.folder(self.account) / "public"

    @property
    def public_url(self) -> str | None:
        """Where others find them, as far as the settings say."""
        given, serve = self.settings.public_url, self.settings.serve
        return given.rstrip("/") if given else f"http://{serve}" if serve else None


def coins(wei: int) -> str:
    """An amount of the chain's own coin for people, to a billionth."""
    return f"{brief(format_amount(wei, COIN_DECIMALS), 9)} coins"
