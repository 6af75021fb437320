"""`earnest token`: play money, where the token is ours."""

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
    """Make play tokens out of nothing; only on local chains, only by the key that deployed.

    Example: earnest token mint 1000 --to 0x000000000000000000000000000000000000dEaD

    Parameters
    ----------
    amount
        Tokens to make.
    to
        Address that gets them (default: your own).
    """
    with Session(flags) as session:
        if not session.network.local or "PlayToken" not in session.manifest.current.contracts:
            raise UsageError(
                f"the token of {session.network.name} is not ours to mint", "get it where it is traded"
            )
        wei, receiver = session.wei(amount), session.address(to)
        steps = mint_calls(session.contracts, receiver, wei)
        document = {"action": "mint", "to": receiver, **session.amounts("amount", wei)}
        done = f"Made {session.tokens(wei)} for {receiver}."
        return send(session, f"token/mint/{receiver}/{wei}", steps, document, done)
