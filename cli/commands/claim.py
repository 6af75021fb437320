"""`earnest claim`."""

from __future__ import annotations

from earnest.cli.flags import SendFlags
from earnest.cli.output import Answer
from earnest.cli.session import Session

SEND = SendFlags()


def claim(*, flags: SendFlags = SEND) -> Answer:
    """Withdraw your pay, and all other idle tokens, from the vault.

    Pay becomes idle balance when a round is settled. This command moves the idle balance to your account.

    Example: earnest claim
    """
    from earnest.cli.commands.stake import take_out

    with Session(flags) as session:
        return take_out(session, None, "claim")
