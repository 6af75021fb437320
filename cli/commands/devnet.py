"""`earnest devnet`: the embedded chain, served over HTTP for separate processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from earnest.cli.exits import UsageError
from earnest.cli.flags import KeyFlags
from earnest.cli.output import Answer, show, table
from earnest.cli.session import Session
from earnest.deploy.devnet.server import serve

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount

COIN = 10**18
FAST_SCRYPT_N = 2
KEY = KeyFlags()


def devnet(
    *,
    host: str = "127.0.0.1",
    port: int = 8545,
    block_time: float = 1.0,
    accounts: int = 10,
    balance: int = 1_000,
    seed: str = "devnet",
    finality: int = 0,
    keys: Path | None = None,
    flags: KeyFlags = KEY,
) -> None:
    """Serve a local chain with funded accounts until it is stopped (Ctrl-C or SIGTERM). Its money is worth nothing.

    Nothing is kept: a chain that is started again begins anew.

    Example: earnest devnet --block-time 1 --keys devnet-keys --password-file password.txt

    Parameters
    ----------
    host
        Address to listen on; the accounts' keys are public, so keep it to this machine.
    port
        Port to listen on; 0 takes a free one.
    block_time
        Seconds between blocks.
    accounts
        How many accounts are funded.
    balance
        Coins that each has, for gas.
    seed
        Text that the accounts' keys follow from.
    finality
        Blocks behind the head that count as final.
    keys
        Folder for the accounts' key files account-0.json, account-1.json, ..., for the password given.
    """
    from earnest.deploy.devnet.chain import CHAIN_ID, Devnet, account

    with Session(flags) as session:
        if block_time <= 0 or not 1 <= accounts <= 1_000 or balance < 0 or finality < 0:
            raise UsageError(
                "block time and accounts must be positive, at most 1000 accounts", "correct the numbers"
            )
        funded = [account(seed.encode(), index) for index in range(accounts)]
        files = [] if keys is None else _write_keys(session, keys, funded)
        balances: dict[str, int] = {one.address: balance * COIN for one in funded}
        # Born now, so that every start is another chain, and no journal takes it for the one before.
        chain = Devnet(balances, genesis_time=int(session.environment.clock()), finality=finality)
        with session.environment.stopping() as stop:
            try:
                with serve(chain, host, port, block_time, clock=session.environment.clock) as server:
                    listed = [
                        {"account": one.address, "key_file": str(files[i]) if files else None}
                        for i, one in enumerate(funded)
                    ]
                    document = {
                        "url": server.url,
                        "chain_id": CHAIN_ID,
                        "block_time_s": block_time,
                        "accounts": listed,
                    }
                    show(_told(document), session.environment.stdout, as_json=flags.json)
                    session.notice("serving until stopped (Ctrl-C)")
                    stop.wait()
            except OSError as error:
                raise UsageError(
                    f"cannot listen on {host}:{port}: {error.strerror}", "choose another --port"
                ) from error


def _told(document: dict[str, Any]) -> Answer:
    rows = [(one["account"], one["key_file"]) for one in document["accounts"]]
    return Answer(
        document,
        [
            f"Chain {document['chain_id']} at {document['url']}, a block every {document['block_time_s']:g} s",
            table("Funded accounts", ("account", "key file"), rows),
        ],
    )


def _write_keys(session: Session, folder: Path, funded: list[LocalAccount]) -> list[Path]:
    """A key file for each account; those of an earlier start with this seed stay."""
    from earnest.client.chain.signer import import_key, keystore_address

    password, files = session.password("Password for the key files: "), []
    for index, one in enumerate(funded):
        path = folder / f"account-{index}.json"
        if not path.exists():
            import_key(path, password, bytes(one.key), FAST_SCRYPT_N)
        elif keystore_address(path) != one.address:
            raise UsageError(
                f"{path} holds another key", "choose another --keys folder, or the seed it was made with"
            )
        files.append(path)
    return files
