"""Tokens in and out: what is sent, what only reads, what is refused and with which message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import pytest

from earnest.cli.exits import Exit, error_document, exit_code
from earnest.cli.flags import NodeFlags, SendFlags
from earnest.cli.session import Session
from earnest.cli.transactions import send
from earnest.client.account.sending import ChangedPlanError, HalfwayError, perform
from earnest.client.account.transactions import PlannedCall
from earnest.client.storage.lease import Lease
from tests.cli.conftest import ADDRESS, COIN, Place, Result, TestEnvironment

Cli = Callable[..., Result]
HALF = 5 * COIN // 10


def holdings(place: Place, cli: Cli, role: str) -> dict[str, str]:
    return cli("stake", "show", *place.acting(role), "--json").document


def blocks_with_transactions(place: Place) -> int:
    """How many of the chain's blocks hold a transaction."""
    numbers = range(place.devnet.head.header.block_number + 1)
    return sum(1 for n in numbers if (block := place.devnet.block(n)) is not None and block.transactions)


def test_a_deposit_approves_first_and_can_be_taken_out_again(place: Place, cli: Cli) -> None:
    before = holdings(place, cli, "trainer")
    deposited = cli("stake", "deposit", "12.5", *place.acting("trainer"), "--json").document
    assert [t["step"] for t in deposited["transactions"]] == ["approve", "deposit"]
    assert (deposited["amount"], deposited["amount_wei"]) == ("12.5", "12500000000000000000")
    after = holdings(place, cli, "trainer")
    assert int(after["idle_wei"]) - int(before["idle_wei"]) == 125 * COIN // 10
    assert cli("stake", "withdraw", "0.5", *place.acting("trainer")).code == 0
    taken = cli("claim", *place.acting("trainer"), "--json").document
    assert int(taken["amount_wei"]) == int(after["idle_wei"]) - HALF
    assert holdings(place, cli, "trainer")["held_wei"] == str(
        int(before["held_wei"]) + int(before["idle_wei"])
    )


def test_a_claim_with_nothing_to_take_is_done(place: Place, cli: Cli) -> None:
    sent = blocks_with_transactions(place)
    result = cli("claim", *place.acting("newcomer"))
    assert (result.code, blocks_with_transactions(place)) == (0, sent)
    assert "Nothing to withdraw" in result.out


def test_the_same_command_again_is_a_new_deposit(place: Place, cli: Cli) -> None:
    before = int(holdings(place, cli, "validator")["idle_wei"])
    for _ in range(2):
        assert cli("stake", "deposit", "3", *place.acting("validator")).code == 0
    assert int(holdings(place, cli, "validator")["idle_wei"]) == before + 6 * COIN


def test_more_than_one_has_is_refused_before_anything_is_sent(place: Place, cli: Cli) -> None:
    sent = blocks_with_transactions(place)
    result = cli("stake", "deposit", "1000000", *place.acting("trainer"), "--json")
    assert result.code == 1
    assert "1000000 PLAY are needed" in result.error["cause"]
    assert "earnest token mint" in result.error["fix"]
    assert blocks_with_transactions(place) == sent


def test_a_revert_is_shown_with_the_contracts_reason(place: Place, cli: Cli) -> None:
    result = cli("token", "mint", "1", *place.acting("trainer"), "--json")
    assert result.code == 1
    assert result.error["code"] == "reverted"
    assert result.error["reason"] == "token: not the minter"
    told = cli("token", "mint", "1", *place.acting("trainer"))
    assert told.out == ""
    assert "token: not the minter" in told.err
    assert "fix:" in told.err


def test_an_account_without_coins_cannot_send(place: Place, cli: Cli) -> None:
    assert cli("token", "mint", "1", "--to", ADDRESS["stranger"], *place.acting("sponsor")).code == 0
    result = cli("stake", "deposit", "1", *place.acting("stranger"), "--json")
    assert result.code == 1
    assert result.error["code"] == "out_of_funds"


@pytest.mark.parametrize(
    "command",
    [
        ["stake", "deposit", "1"],
        ["stake", "bond", "1", "1"],
        ["run", "join", "1", "--role", "trainer"],
        ["deploy", "run", "--again"],
    ],
    ids=" ".join,
)
def test_a_dry_run_shows_calls_and_sends_nothing(command: list[str], place: Place, cli: Cli) -> None:
    sent, nonce = (
        blocks_with_transactions(place),
        place.devnet.pending_nonce(bytes.fromhex(ADDRESS["trainer"][2:])),
    )
    result = cli(*command, *place.acting("trainer"), "--dry-run", "--json")
    assert result.code == 0, result
    document = result.document
    assert document["dry_run"] is True
    cost, balance = int(document["cost_wei"]), int(document["balance_wei"])
    assert 0 < cost == balance - int(document["balance_after_wei"])
    for call in document.get("calls", []):
        assert call["function"] and call["args"] and call["to"].startswith("0x")
    assert blocks_with_transactions(place) == sent
    assert place.devnet.pending_nonce(bytes.fromhex(ADDRESS["trainer"][2:])) == nonce


def test_a_dry_run_needs_no_password(place: Place, cli: Cli) -> None:
    key = ["--keystore", str(place.key("trainer"))]
    result = cli("stake", "deposit", "1", *place.reading(), *key, "--dry-run", "--json")
    assert [call["function"] for call in result.document["calls"]] == ["approve", "deposit"]


@pytest.mark.parametrize("amount", ["-1", "1e3", "1,5", "0x10", "", "1.0000000000000000001", "all the money"])
def test_a_malformed_amount_is_a_usage_error(amount: str, place: Place, cli: Cli) -> None:
    result = cli("stake", "deposit", *place.acting("trainer"), "--json", "--", amount)
    assert result.code == 2
    assert result.error["code"] == "amount"


def test_a_wrong_password_is_refused_before_anything_is_sent(
    place: Place, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = blocks_with_transactions(place)
    monkeypatch.setenv("EARNEST_PASSWORD", "not the password")
    key = ["--keystore", str(place.key("trainer"))]
    result = cli("stake", "deposit", "1", *place.reading(), *key, "--json")
    assert result.code == 4
    assert result.error["code"] == "wrong_password"
    assert "not the password" not in result.out + result.err
    assert blocks_with_transactions(place) == sent


def test_without_a_terminal_a_missing_password_is_an_error(place: Place, cli: Cli) -> None:
    key = ["--keystore", str(place.key("trainer"))]
    result = cli("stake", "deposit", "1", *place.reading(), *key, "--json")
    assert result.code == 2
    assert "EARNEST_PASSWORD" in result.error["fix"]


def test_at_a_terminal_the_password_is_prompted_for(place: Place, cli: Cli) -> None:
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return "a good password"

    key = ["--keystore", str(place.key("trainer"))]
    environment = TestEnvironment(present=True, ask_password=answer)
    assert cli("stake", "deposit", "1", *place.reading(), *key, environment=environment).code == 0
    assert asked == [f"Password of {ADDRESS['trainer']}: "]


def test_a_key_in_use_by_a_node_sends_nothing_else(place: Place, cli: Cli) -> None:
    key = place.key("trainer")
    with Lease(key.with_name(f"{key.name}.lock"), f"key {key}"):
        result = cli("stake", "deposit", "1", *place.acting("trainer"), "--json")
    assert result.code == 5
    assert result.error["code"] == "journal_locked"
    assert "in use by another node" in result.error["cause"]


def test_the_owners_key_stays_free_while_the_operator_works(place: Place, cli: Cli) -> None:
    flags = NodeFlags(
        rpc=(place.url,),
        data_dir=place.folder / "data",
        keystore=place.key("operator"),
        password_file=place.folder / "password",
    )
    with Session(flags) as session:
        assert session.open_account(ADDRESS["trainer"]).owner == ADDRESS["trainer"]
        assert cli("stake", "deposit", "1", *place.acting("trainer")).code == 0


def test_a_corrupt_journal_is_an_error_and_stays_as_it_is(place: Place, cli: Cli) -> None:
    assert cli("stake", "deposit", "1", *place.acting("validator")).code == 0
    (journal,) = (place.folder / "data").glob(f"devnet-*/{ADDRESS['validator']}/journal.sqlite")
    whole = journal.read_bytes()
    journal.write_bytes(b"nonsense" * 100)
    try:
        result = cli("stake", "withdraw", "all", *place.acting("validator"), "--json")
        assert result.code == 5
        assert result.error["code"] == "journal_corrupt"
        assert journal.read_bytes() == b"nonsense" * 100
    finally:
        journal.write_bytes(whole)


# Interrupted and failed half-way


@pytest.fixture
def trainer_session(place: Place) -> Iterator[Session]:
    flags = SendFlags(
        rpc=(place.url,),
        data_dir=place.folder / "data",
        keystore=place.key("trainer"),
        password_file=place.folder / "password",
        environment=TestEnvironment(),
    )
    with Session(flags) as session:
        yield session


def approval(session: Session, amount: int) -> PlannedCall:
    vault = session.contracts.vault.address
    return PlannedCall("approve", "let the vault take it", session.contracts.token.approve(vault, amount))


def test_a_step_that_fails_after_others_says_what_is_mined_and_how_to_go_on(
    place: Place, trainer_session: Session
) -> None:
    too_much = trainer_session.contracts.vault.withdraw(10**30)
    steps = [approval(trainer_session, 5), PlannedCall("withdraw", "take it out", too_much)]
    failed = []
    sent = blocks_with_transactions(place)
    for _ in range(2):
        with pytest.raises(HalfwayError) as caught:
            send(trainer_session, "halfway", steps, {}, "Done.")
        failed.append(caught.value)
        assert blocks_with_transactions(place) == sent + 1, "what is mined is not sent again"
    first, second = failed
    assert exit_code(first) is Exit.REFUSED
    document = error_document(first)["error"]
    assert (document["code"], document["reason"]) == ("reverted", "vault: idle balance too small")
    (approved,) = document["transactions"]
    assert approved["step"] == "approve"
    assert f"mined before it and not undone: approve ({approved['hash']})" in first.cause
    assert "continues after them" in first.fix
    assert second.transactions == first.transactions
    assert "starts from the beginning" in second.fix, "a step refused again would block the command for ever"


def test_an_interrupted_command_repeated_with_other_calls_sends_nothing_and_says_what_was_mined(
    place: Place, trainer_session: Session
) -> None:
    account = trainer_session.open_account()
    steps = [approval(trainer_session, 6), replace(approval(trainer_session, 7), name="again")]
    interrupted = perform(account, "label", steps)
    _, receipt = next(interrupted)
    interrupted.close()
    sent = blocks_with_transactions(place)
    other = [approval(trainer_session, 8)]
    with pytest.raises(ChangedPlanError, match=receipt.hash):
        list(perform(account, "label", other))
    assert blocks_with_transactions(place) == sent
    assert [done.hash for _, done in perform(account, "label", other)] != [receipt.hash]
    assert blocks_with_transactions(place) == sent + 1


def test_an_interrupted_command_repeated_with_the_same_calls_sends_the_rest(
    place: Place, trainer_session: Session
) -> None:
    account = trainer_session.open_account()
    steps = [approval(trainer_session, 6), replace(approval(trainer_session, 7), name="again")]
    interrupted = perform(account, "same", steps)
    _, receipt = next(interrupted)
    interrupted.close()
    sent = blocks_with_transactions(place)
    again, _ = perform(account, "same", steps)
    assert again[1].hash == receipt.hash
    assert blocks_with_transactions(place) == sent + 1


# Networks of value


@pytest.fixture(scope="module")
def valuable(place: Place) -> list[str]:
    """Flags that make the chain look like a network that is not local: same chain id, other name."""
    return ["--network", "valuable", "--manifest", str(place.folder / "data/manifests/devnet.json")]


@pytest.fixture
def with_valuable(monkeypatch: pytest.MonkeyPatch) -> None:
    from earnest.deploy import networks

    described = networks.Network(name="valuable", chain_id=1337, block_time_s=1.0, finality_blocks=0)
    known = {**networks.networks(), "valuable": described}
    monkeypatch.setattr(networks, "networks", lambda: known)


@pytest.mark.usefixtures("with_valuable")
def test_where_money_has_value_consent_is_needed(place: Place, valuable: list[str], cli: Cli) -> None:
    sent = blocks_with_transactions(place)
    result = cli("stake", "deposit", "1", *place.acting("trainer"), *valuable, "--json")
    assert result.code == 2
    assert "--yes" in result.error["fix"]
    assert "approve(" in result.err
    assert "deposit 1 PLAY into the vault" in result.err
    assert "Together about" in result.err
    assert blocks_with_transactions(place) == sent
    assert cli("stake", "deposit", "1", *place.acting("trainer"), *valuable, "--yes", "--json").code == 0


@pytest.mark.usefixtures("with_valuable")
@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 2), ("\n", 2), ("", 2)])
def test_at_a_terminal_consent_is_prompted_for(
    answer: str, code: int, place: Place, valuable: list[str], cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "answer").write_text(answer)
    with (tmp_path / "answer").open() as stdin:
        result = cli(
            "stake",
            "deposit",
            "1",
            *place.acting("trainer"),
            *valuable,
            "--json",
            environment=Answering(stdin),
        )
    assert result.code == code
    assert f"Send from {ADDRESS['trainer']} on valuable? [y/N]" in result.err


@pytest.mark.usefixtures("with_valuable")
def test_play_tokens_are_only_made_on_local_chains(place: Place, valuable: list[str], cli: Cli) -> None:
    result = cli("token", "mint", "1", *place.acting("sponsor"), *valuable, "--yes", "--json")
    assert result.code == 2
    assert "cannot be minted" in result.error["cause"]


class Answering(TestEnvironment):
    """Somebody at the keyboard, who types what a file holds."""

    def __init__(self, keyboard: TextIO) -> None:
        super().__init__(present=True)
        object.__setattr__(self, "_keyboard", keyboard)

    @property
    def stdin(self) -> TextIO:
        return self._keyboard  # pyright: ignore
