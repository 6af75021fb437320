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
    """Serve a local chain with funded accounts until it is stopped (Ctrl-C or SIGTERM). Its coins are worthless.

    The chain is not saved: every start is a new chain.

    Example: earnest devnet --block-time 1 --keys devnet-keys --password-file password.txt

    Parameters
    ----------
    host
        Address to listen on. The accounts' keys are public, so do not serve other machines.
    port
        Port to listen on; 0 chooses a free one.
    block_time
        Seconds between blocks.
    accounts
        Number of funded accounts.
    balance
        Coins of each account, for gas.
    seed
        Text from which the accounts' keys are derived.
    finality
        A block is final once it is this many blocks below the newest.
    keys
        Folder to write the accounts' key files to: account-0.json, account-1.json, ...
    """
    from earnest.deploy.devnet.chain import CHAIN_ID, Devnet, account

    with Session(flags) as session:
        if block_time <= 0 or not 1 <= accounts <= 1_000 or balance < 0 or finality < 0:
            raise UsageError(
                "a number is out of range",
                "give a --block-time above 0 s, 1 to 1000 --accounts, and no negative --balance or --finality",
            )
        funded = [account(seed.encode(), index) for index in range(accounts)]
        files = [] if keys is None else _write_keys(session, keys, funded)
        balances: dict[str, int] = {owner.address: balance * COIN for owner in funded}
        # The genesis time is now, so that no journal takes this chain for an earlier one.
        chain = Devnet(balances, genesis_time=int(session.environment.clock()), finality=finality)
        with session.environment.stopping() as stop:
            try:
                with serve(chain, host, port, block_time, clock=session.environment.clock) as server:
                    listed = [
                        {"account": owner.address, "key_file": str(files[i]) if files else None}
                        for i, owner in enumerate(funded)
                    ]
                    document = {
                        "url": server.url,
                        "chain_id": CHAIN_ID,
                        "block_time_s": block_time,
                        "accounts": listed,
                    }
                    show(_answer(document), session.environment.stdout, as_json=flags.json)
                    session.notice("serving until stopped (Ctrl-C)")
                    stop.wait()
            except OSError as error:
                raise UsageError(
                    f"cannot listen on {host}:{port}: {error.strerror}", "choose another --port"
                ) from error


def _answer(document: dict[str, Any]) -> Answer:
    rows = [(account["account"], account["key_file"]) for account in document["accounts"]]
    return Answer(
        document,
        [
            f"Chain {document['chain_id']} at {document['url']}, a block every {document['block_time_s']:g} s",
            table("Funded accounts", ("account", "key file"), rows),
        ],
    )


def _write_keys(session: Session, folder: Path, funded: list[LocalAccount]) -> list[Path]:
    """Writes a key file for each account; keeps those of an earlier start with the same seed."""
    from earnest.client.chain.signer import import_key, keystore_address

    password = session.password("Password for the key files: ")
    files = []
    for index, owner in enumerate(funded):
        path = folder / f"account-{index}.json"
        if not path.exists():
            import_key(path, password, bytes(owner.key), FAST_SCRYPT_N)
        elif keystore_address(path) != owner.address:
            raise UsageError(
                f"{path} holds another key", "choose another --keys folder, or the --seed of these key files"
            )
        files.append(path)
    return files
