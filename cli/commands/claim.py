"""`earnest claim`."""

from __future__ import annotations

from earnest.cli.flags import SendFlags
from earnest.cli.output import Answer
from earnest.cli.session import Session

SEND = SendFlags()


def claim(*, flags: SendFlags = SEND) -> Answer:
    """Take everything that was earned out of the vault.

    Pay arrives as idle balance as soon as a round is settled; this moves all that is idle to your account.

    Example: earnest claim
    """
    from earnest.cli.commands.stake import take_out

    with Session(flags) as session:
        return take_out(session, None, "claim")
