"""`earnest token`: play tokens on local chains."""

from __future__ import annotations

from earnest.cli.app import make_group
from earnest.cli.exits import UsageError
from earnest.cli.flags import SendFlags
from earnest.cli.output import Answer
from earnest.cli.session import Session
from earnest.cli.transactions import send
from earnest.client.account.transactions import mint_calls

app = make_group("token")
SEND = SendFlags()


@app.command
def mint(amount: str, /, *, to: str | None = None, flags: SendFlags = SEND) -> Answer:
    """Mint play tokens. Only on local chains, and only with the key that deployed the contracts.

    Example: earnest token mint 1000 --to 0x000000000000000000000000000000000000dEaD

    Parameters
    ----------
    amount
        Tokens to mint, for example 1000.
    to
        Address that receives them (default: your own).
    """
    with Session(flags) as session:
        if not session.network.local or "PlayToken" not in session.manifest.current.contracts:
            raise UsageError(
                f"the token of {session.network.name} cannot be minted", "obtain it where it is traded"
            )
        wei, receiver = session.wei(amount), session.address(to)
        steps = mint_calls(session.contracts, receiver, wei)
        document = {"action": "mint", "to": receiver, **session.amounts("amount", wei)}
        done = f"Minted {session.tokens(wei)} for {receiver}."
        return send(session, f"token/mint/{receiver}/{wei}", steps, document, done)
