"""One command's work place: settings, the chain, the deployment, the account. Each is opened when first asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from earnest.cli.exits import UsageError
from earnest.cli.flags import Flags
from earnest.cli.output import Answer, amounts, plain, progress, safe
from earnest.client.addresses import checked_address
from earnest.client.amounts import brief, format_amount, parse_amount
from earnest.client.errors import KeystoreError
from earnest.client.logs import configure_logs
from earnest.client.settings import Settings

if TYPE_CHECKING:
    from earnest.client.chain.answers import Receipt
    from earnest.client.chain.blockref import BlockRef
    from earnest.client.chain.contracts import Contracts
    from earnest.client.chain.endpoints import Chain
    from earnest.client.chain.outbox import Preview
    from earnest.client.chain.signer import Signer
    from earnest.client.participation import Step
    from earnest.client.party import Deployment, Party
    from earnest.deploy.manifest import Manifest
    from earnest.deploy.networks import Network

COIN_DECIMALS = 18


class Session:
    """Opened from a command's flags; a context manager that gives leases and sockets back."""

    def __init__(self, flags: Flags) -> None:
        self.flags = flags
        self.world = flags.world
        self.settings: Settings = flags.settings()
        self._closing = ExitStack()
        configure_logs(self.world.stderr, self.world.clock, level="warning")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def notice(self, text: str) -> None:
        """A line for people, on stderr."""
        self.world.stderr.write(safe(text) + "\n")
        self.world.stderr.flush()

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
        """The block that this command reads: the newest when it first asked."""
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
    def deployment(self) -> Deployment:
        from earnest.client.chain.contracts import Contracts
        from earnest.client.party import Deployment

        contracts = Contracts.at(self.chain, self.manifest.address("TrainingRuns"), self.at)
        return Deployment(self.chain, contracts, self.manifest.first_block)

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
        if not self.world.interactive:
            raise UsageError("the key's password is needed", "give --password-file or EARNEST_PASSWORD")
        return self.world.ask_password(prompt)

    @cached_property
    def signer(self) -> Signer:
        from earnest.client.chain.signer import Signer

        password = self.password(f"Password of {self.account}: ")
        with progress(self.world.stderr, "opening the key file"):
            return Signer.load(self.keystore, password)

    def hold_key(self) -> None:
        """Takes the key's lease: one process at a time sends with one key, whatever its data folder."""
        from earnest.client.storage.lease import Lease

        path = self.keystore.with_name(f"{self.keystore.name}.lock")
        self._closing.enter_context(Lease(path, f"key {self.keystore}"))

    def folder(self, owner: str) -> Path:
        """Where an account's journal and objects are: apart for each deployment, restarted local chains included."""
        birth = self.deployment.name.rpartition("/")[2]
        return self.settings.data_dir / f"{self.network.name}-{birth[:8]}" / owner

    def party(self, owner: str | None = None) -> Party:
        """The account at work: takes the leases on key and journal."""
        from earnest.client.party import Party

        signer, owner = self.signer, owner or self.account
        self.hold_key()
        return self._closing.enter_context(
            Party(
                self.deployment,
                signer,
                owner,
                self.folder(owner),
                clock=self.world.monotonic,
                sleep=self.world.sleep,
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

    # Transactions

    def send(
        self,
        label: str,
        steps: Sequence[Step],
        document: dict[str, Any],
        done: str | Callable[[dict[str, Any]], str],
        found: Callable[[Sequence[Receipt]], dict[str, Any]] = lambda receipts: {},
    ) -> Answer:
        """Previews the steps, asks where it has to, sends them. Only previews them with --dry-run.

        `label` names the command and its arguments, for the journal. `found` reads results out of the receipts into
        the document, from which `done` says in words what then is the case.
        """
        from earnest.client.commands import finish_earlier

        plan = self.preview(steps)
        if self.flags.dry_run:
            return self.would_send(plan, document)
        self.consent(plan)
        party = self.party()
        for name in finish_earlier(party):
            self.notice(f"an earlier transaction is mined: {name}")
        receipts = self.transact(party, label, steps)
        document = {**document, **found(receipts)}
        transactions = [
            transaction(step.name, step.call.function, receipt)
            for step, receipt in zip(steps, receipts, strict=True)
        ]
        lines = [f"{t['step']}: {t['hash']} in block {t['block']}, {t['gas']:,} gas" for t in transactions]
        told = done if isinstance(done, str) else done(document)
        return Answer({**document, "account": self.account, "transactions": transactions}, [*lines, told])

    def transact(self, party: Party, label: str, steps: Sequence[Step]) -> list[Receipt]:
        """Sends the steps one after the other, with a notice for each."""
        from earnest.client.commands import perform

        return perform(party, label, steps, lambda step: self.notice(f"{step.purpose} ..."))

    def preview(self, steps: Sequence[Step]) -> list[tuple[Step, Preview | None]]:
        """What the steps would cost, from what the chain says now."""
        from earnest.client.commands import previews

        return list(zip(steps, previews(self.deployment, self.account, steps), strict=True))

    def consent(self, plan: Sequence[tuple[Step, Preview | None]]) -> None:
        """Asks before money of value moves. Raises UsageError for a no, or where nobody can be asked."""
        if self.network.local or self.flags.yes:
            return
        for line in self._plan_lines(plan):
            self.notice(line)
        if not self.world.interactive:
            raise UsageError(
                f"{self.network.name} is not a local network, and nobody is here to be asked",
                "look at it with --dry-run, then say --yes",
            )
        self.world.stderr.write(f"Send from {self.account} on {self.network.name}? [y/N] ")
        self.world.stderr.flush()
        if self.world.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UsageError("not sent", "answer y, or give --yes")

    def would_send(self, plan: Sequence[tuple[Step, Preview | None]], document: dict[str, Any]) -> Answer:
        """The answer to --dry-run."""
        known = [preview for _, preview in plan if preview is not None]
        balance = known[0].balance if known else self.chain.balance(self.account, self.at)
        cost = sum(preview.cost for preview in known)
        calls = [_call_document(step, preview) for step, preview in plan]
        whole = {
            **document,
            "dry_run": True,
            "account": self.account,
            "calls": calls,
            "cost_wei": str(cost),
            "balance_wei": str(balance),
            "balance_after_wei": str(balance - cost),
        }
        after = f"balance {coins(balance)}, at least {coins(balance - cost)} after; nothing was sent"
        return Answer(whole, [*self._plan_lines(plan), after])

    def _plan_lines(self, plan: Sequence[tuple[Step, Preview | None]]) -> list[str]:
        lines: list[str] = []
        for step, found in plan:
            arguments = ", ".join(f"{name}={_short(value)}" for name, value in step.call.args.items())
            lines.append(f"{step.purpose}: {step.call.function}({arguments}) to {step.call.to}")
            cost = "gas is known once the step before is mined"
            if found is not None:
                cost = f"at most {found.gas:,} gas, {coins(found.cost)}"
            lines.append(f"  {cost}")
        return lines


def transaction(step: str, function: str, receipt: Receipt) -> dict[str, Any]:
    return {
        "step": step,
        "function": function,
        "hash": receipt.hash,
        "block": receipt.block_number,
        "gas": receipt.gas_used,
        "cost_wei": str(receipt.cost),
    }


def _call_document(step: Step, found: Preview | None) -> dict[str, Any]:
    return {
        "step": step.name,
        "purpose": step.purpose,
        "to": step.call.to,
        "function": step.call.function,
        "args": step.call.args,
        "gas": None if found is None else found.gas,
        "cost_wei": None if found is None else str(found.cost),
    }


def _short(value: Any) -> str:
    text = str(plain(value))
    return text if len(text) <= 100 else f"{text[:97]}..."


def coins(wei: int) -> str:
    """An amount of the chain's own coin for people, to a billionth."""
    return f"{brief(format_amount(wei, COIN_DECIMALS), 9)} coins"
