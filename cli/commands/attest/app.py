"""The group `earnest attest`: each command is in the file named here."""

from earnest.cli.app import make_group
from earnest.cli.commands.attest import guardian, keys, policies, quotes

app = make_group("attest")
for _command in (
    quotes.verify,
    policies.policy,
    quotes.simulate,
    keys.register,
    keys.show,
    guardian.deny,
    guardian.raise_floor,
    guardian.revoke,
):
    app.command(_command)
