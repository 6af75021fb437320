"""The tree of commands. A group's module is imported only when one of its commands runs.

To add a command: CONTRIBUTING.md, "A command".
"""

from __future__ import annotations

from importlib.metadata import version

from cyclopts import App, Group

from earnest.cli.exits import MEANINGS

TRY = Group("Try it", sort_key=1)
EVERYONE = Group("Everyone", sort_key=2)
DEPLOYER = Group("Deployer: put the contracts on a chain", sort_key=3)
SPONSOR = Group("Sponsor: open a run. Trainers and validators: join it", sort_key=4)
NODES = Group("Trainer and validator: the nodes", sort_key=5)

HELP = """Train a model on machines whose owners need not trust each other: work is scored, paid and penalised on chain.

Example: earnest demo --attack sign-flip
"""

EPILOGUE = "\n".join(
    [
        "Settings: flags override EARNEST_* variables, which override earnest.toml. docs/cli.md lists them.",
        "Exit codes: " + "; ".join(f"{code.value} {meaning}" for code, meaning in MEANINGS.items()) + ".",
    ]
)

COMMANDS = (
    ("demo", "demo:demo", TRY),
    ("devnet", "devnet:devnet", TRY),
    ("status", "status:status", EVERYONE),
    ("doctor", "doctor:doctor", EVERYONE),
    ("claim", "claim:claim", EVERYONE),
)
"""Commands without a group. Their modules must import quickly: `earnest --help` reads their docstrings."""

GROUPS = (
    ("keys", "keys:app", EVERYONE, "Create, import and list key files.", "keys new mine"),
    ("stake", "stake:app", EVERYONE, "Deposit, bond, withdraw and show tokens.", "stake show"),
    ("token", "token:app", EVERYONE, "Mint play tokens on local chains.", "token mint 1000"),
    (
        "plan",
        "plan:app",
        EVERYONE,
        "Estimate what a run costs: bytes, seconds, gas, privacy.",
        "plan training",
    ),
    (
        "task",
        "task:app",
        EVERYONE,
        "Check a Task before a run, export its model after it.",
        "task check recipe.json",
    ),
    ("deploy", "deploy:app", DEPLOYER, "Plan, execute and verify a deployment.", "deploy verify"),
    ("run", "run:app", SPONSOR, "Open, show, join, leave, settle, end and fetch runs.", "run show 1"),
    ("seat", "seat:app", SPONSOR, "Show a seat, change its operator or its URL.", "seat show 1"),
    (
        "attest",
        "attest.app:app",
        SPONSOR,
        "Attested runs: check and create quotes and policies; register, show, deny and revoke keys.",
        "attest verify quote.bin --collateral collateral.json --at 1767225600",
    ),
    ("penalty", "penalty:app", SPONSOR, "Show penalties and contest one.", "penalty show 1"),
    ("trainer", "nodes:trainer", NODES, "Run a trainer node.", "trainer start 1 --serve 0.0.0.0:9100"),
    (
        "validator",
        "nodes:validator",
        NODES,
        "Run a validator node.",
        "validator start 1 --serve 0.0.0.0:9200",
    ),
)


def make_group(name: str) -> App:
    """Returns the App of a group of commands. Its help text is in GROUPS."""
    return App(name=name, help_format="plaintext", result_action="return_value", help_epilogue="")


app = App(
    name="earnest",
    help=HELP,
    help_epilogue=EPILOGUE,
    help_format="plaintext",
    version=lambda: version("earnest"),
    result_action="return_value",
)
for _name, _path, _group in COMMANDS:
    app.command(f"earnest.cli.commands.{_path}", name=_name, group=_group, help_epilogue="")
for _name, _path, _group, _help, _example in GROUPS:
    app.command(
        f"earnest.cli.commands.{_path}",
        name=_name,
        group=_group,
        help=f"{_help}\n\nExample: earnest {_example}",
    )
