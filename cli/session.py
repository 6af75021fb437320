"""State of one command: settings, chain, deployment, account. Each is opened on first use."""

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
    """Made from a command's flags; a context manager that releases leases and sockets."""

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
        """Prints a line on stderr."""
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
        confirmations = self.settings.confirmations
        return self.network.finality_blocks if confirmations is None else confirmations

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
        """The block that this command reads: the newest, after all transactions of earlier commands are mined."""
        self.finish_earlier()
        return self.chain.head()

    @cached_property
    def own_manifest(self) -> Path:
        """Path of the manifest of a deployment made by this user."""
        default = self.settings.data_dir / "manifests" / f"{self.network.name}.json"
        return self.settings.manifest or default

    @cached_property
    def manifest(self) -> Manifest:
        from importlib.resources import as_file, files

        from earnest.deploy.manifest import ManifestError, load_manifest

        bundled = files("earnest.deploy") / "manifests" / f"{self.network.name}.json"
        if self.settings.manifest is None and not self.own_manifest.exists() and bundled.is_file():
            with as_file(bundled) as path:
                manifest = load_manifest(path)
        else:
            manifest = load_manifest(self.own_manifest)
        if manifest.chain_id != self.network.chain_id:
            raise ManifestError(
                f"the manifest is of chain {manifest.chain_id}, {self.network.name} is chain {self.network.chain_id}",
                "give the --network of this manifest, or another --manifest",
            )
        if not manifest.current.complete:
            raise ManifestError("the deployment is not finished", "finish it: `earnest deploy run`")
        return manifest

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
        """Parses an amount of the token and returns it in wei. Raises AmountError."""
        return parse_amount(text, self.decimals)

    def tokens(self, wei: int) -> str:
        """Formats wei as an amount of the token with its symbol."""
        return f"{brief(format_amount(wei, self.decimals))} {self.symbol}"

    def amounts(self, name: str, wei: int) -> dict[str, str]:
        return amounts(name, wei, self.decimals)

    # Account

    @cached_property
    def keystore(self) -> Path:
        """The key file: a path, a name from `earnest keys list`, or the only key. Raises KeystoreError."""
        folder = self.settings.data_dir / "keys"
        path = self.settings.keystore
        if path is not None:
            named = folder / f"{path}.json"
            return named if path.parent == Path() and not path.exists() and named.exists() else path
        keys = sorted(folder.glob("*.json"))
        if len(keys) != 1:
            cause = f"there are {len(keys)} keys in {folder}" if keys else f"there is no key in {folder}"
            raise KeystoreError(cause, "name one with --keystore, or create one with `earnest keys new NAME`")
        return keys[0]

    @cached_property
    def account(self) -> str:
        """Address of the key file. Needs no password."""
        from earnest.client.chain.signer import keystore_address

        return keystore_address(self.keystore)

    def address(self, given: str | None) -> str:
        """Returns a checksummed address; the account's own for None. Raises AddressError."""
        return self.account if given is None else checked_address(given)

    def password(self, prompt: str) -> str:
        """Returns the password of the settings, else prompts for it. Raises UsageError without a terminal."""
        password = self.settings.keystore_password()
        if password is not None:
            return password
        if not self.environment.interactive:
            raise UsageError(
                "the password of the key is missing", "give --password-file, or set EARNEST_PASSWORD"
            )
        return self.environment.ask_password(prompt)

    @cached_property
    def signer(self) -> Signer:
        from earnest.client.chain.signer import Signer

        password = self.password(f"Password of {self.account}: ")
        with progress(self.environment.stderr, "opening the key file"):
            return Signer.load(self.keystore, password)

    def hold_key(self) -> None:
        """Takes the key's lease: only one process at a time sends with a key, even from different data folders."""
        from earnest.client.storage.lease import Lease

        path = self.keystore.with_name(f"{self.keystore.name}.lock")
        self._closing.enter_context(Lease(path, f"key {self.keystore}"))

    def folder(self, owner: str) -> Path:
        """Returns the folder of an account's journal and objects. Every deployment has its own."""
        return self.deployment_folder / owner

    @property
    def deployment_folder(self) -> Path:
        """Folder with the folders of all accounts."""
        birth = self.deployment.name.rpartition("/")[2]
        return self.settings.data_dir / f"{self.network.name}-{birth[:8]}"

    def finish_earlier(self) -> None:
        """Waits for the transactions of an interrupted command, before a command that sends decides anything."""
        sends = isinstance(self.flags, SendFlags) and not isinstance(self.flags, NodeFlags)
        if self._finished or not sends or self.flags.dry_run:
            return
        self._finished = True
        from earnest.client.account.sending import finish_earlier
        from earnest.client.storage.journal import Journal

        path = self.folder(self.account) / "journal.sqlite"
        if not path.exists():
            return
        with Journal(path, self.account, self.deployment.name) as journal:
            waiting = journal.open_intents()
        if waiting:
            for name, receipt in finish_earlier(self.open_account()):
                self.notice(f"an earlier transaction is mined: {name}, {receipt.hash}")

    def open_account(self, owner: str | None = None) -> Account:
        """Returns the account, opened once. Takes the leases of key and journal."""
        if self._account is None:
            self._account = self._open_account(owner or self.account)
        return self._account

    def _open_account(self, owner: str) -> Account:
        from earnest.client.account.account import Account

        signer = self.signer
        self.hold_key()
        # An operator has a folder of its own: it has other nonces, and the owner's key stays free for commands.
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
        """Folder of the account's public objects."""
        return self.folder(self.account) / "public"

    @property
    def public_url(self) -> str | None:
        """URL at which others fetch them; None if the settings name none."""
        url, serve = self.settings.public_url, self.settings.serve
        return url.rstrip("/") if url else f"http://{serve}" if serve else None


def coins(wei: int) -> str:
    """Formats wei as coins of the chain, with up to nine decimals."""
    return f"{brief(format_amount(wei, COIN_DECIMALS), 9)} coins"
