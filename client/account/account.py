"""An account with its key, journal, outbox and object stores, on which commands and nodes are built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from earnest.base.durable import sweep
from earnest.base.errors import EarnestError
from earnest.client.account.transactions import PlannedCall
from earnest.client.chain.contracts import Contracts
from earnest.client.chain.endpoints import Chain
from earnest.client.chain.outbox import Outbox
from earnest.client.chain.scanner import Scanner
from earnest.client.chain.signer import Signer
from earnest.client.run.record import RunRecord
from earnest.client.storage.journal import Journal
from earnest.client.storage.objects import ObjectStore
from earnest.client.storage.serve import ObjectServer

if TYPE_CHECKING:  # `follow` needs torch, which takes seconds to load; a command that sends one call does not
    from earnest.client.node.node import NodeParts
    from earnest.client.run.bundle import RunFiles


@dataclass(frozen=True)
class DeployedContracts:
    """A chain with our contracts on it, since block `first_block`."""

    chain: Chain
    contracts: Contracts
    first_block: int

    @property
    def name(self) -> str:
        """Name of the deployment in journals. A restarted local chain has another, so that old salts are not used."""
        birth = self.chain.block(self.first_block).hash.hex()
        return f"{self.chain.chain_id}/{self.contracts.runs.address}/{birth}"

    def read_run(self, run: int) -> RunRecord:
        """Returns the run's record up to the newest final block. Raises EarnestError if there is no such run."""
        record = RunRecord(run)
        record.apply(self.scanner().poll(self.chain.final()))
        if not record.known:
            raise EarnestError(f"there is no run {run} on this deployment", "list the runs: `earnest status`")
        return record

    def scanner(self) -> Scanner:
        """Returns a scanner of the events of a run: its creation, rounds, settlement and keys."""
        found = self.contracts
        logging = (found.terms, found.runs, found.settlement, found.registry)
        return Scanner(self.chain, logging, self.first_block)


class Account:
    """An account opened in `folder`, with the journal's lease: one process per account and folder.

    `owner` is the address that owns the seats; `signer` may be its operator. The outbox uses `clock` and `sleep`.
    `locate` maps a registered URI to the one to fetch from.
    """

    def __init__(
        self,
        deployment: DeployedContracts,
        signer: Signer,
        owner: str,
        folder: Path,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        locate: Callable[[str], str] = str,
    ) -> None:
        self.deployment = deployment
        self.signer = signer
        self.owner = owner
        self.folder = folder
        self.locate = locate
        self.journal = Journal(folder / "journal.sqlite", owner, deployment.name)
        self.outbox = Outbox(deployment.chain, signer, self.journal, clock=clock, sleep=sleep)
        sweep(folder)  # the journal's lease is ours: nobody else writes here
        self.public = ObjectStore(folder / "public")
        self.private = ObjectStore(folder / "private")
        self._closing = ExitStack()
        self._closing.callback(self.journal.close)

    def close(self) -> None:
        """Stops serving and releases the lease."""
        self._closing.close()

    def __enter__(self) -> Account:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def serve(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Starts a thread that serves the public objects until `close`. Returns the base URL."""
        return self._closing.enter_context(ObjectServer(self.folder / "public", host, port)).url

    def do(self, calls: Sequence[PlannedCall], label: str) -> None:
        """Sends the calls in order; a repeated command continues where it stopped."""
        for planned in calls:
            self.outbox.send(f"{label}/{planned.name}", planned.call)

    def follow(self, run: int, salt: Callable[[], bytes]) -> tuple[NodeParts, RunFiles]:
        """Returns the parts of a node for `run`, and the run's files. Raises BundleError if the files are wrong."""
        from earnest.client.node.node import NodeParts
        from earnest.client.run.bundle import load
        from earnest.client.run.follower import Follower
        from earnest.training.codecs import make_codec

        scanner = self.deployment.scanner()
        record = RunRecord(run)
        record.apply(scanner.poll(self.deployment.chain.final()))
        if not record.known:
            raise EarnestError(f"there is no run {run} on this deployment", "list the runs: `earnest status`")
        files = load(self.locate(record.uri), record.params, self.public)
        follower = Follower(
            record=record,
            recipe=files.bundle.recipe,
            codec=make_codec(files.bundle.recipe.codec, files.initial.state.spec),
            initial=files.initial,
            scanner=scanner,
            store=self.public,
            journal=self.journal,
            locate=self.locate,
            policy=files.bundle.attestation,
        )
        parts = NodeParts(
            chain=self.deployment.chain,
            contracts=self.deployment.contracts,
            follower=follower,
            outbox=self.outbox,
            journal=self.journal,
            store=self.public,
            private=self.private,
            owner=self.owner,
            salt=salt,
        )
        return parts, files
