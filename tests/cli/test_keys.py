"""Key files: created, imported, listed; never overwritten, never weak, never shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from earnest.client.chain.signer import Signer
from tests.cli.conftest import ADDRESS, PASSWORD, SEED, Place, Result, TestEnvironment

Cli = Callable[..., Result]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Flags for a data folder of this test's own and the password."""
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    return ["--data-dir", str(tmp_path / "data"), "--password-file", str(tmp_path / "password")]


def test_a_new_key_comes_from_the_random_source_and_its_file_is_private(
    files: list[str], tmp_path: Path, cli: Cli
) -> None:
    asked: list[int] = []

    def random(count: int) -> bytes:
        asked.append(count)
        return b"\x11" * count

    made = cli("keys", "new", "mine", *files, "--json", environment=TestEnvironment(random=random)).document
    path = Path(made["path"])
    assert path == tmp_path / "data/keys/mine.json"
    assert asked == [32]
    assert path.stat().st_mode & 0o777 == 0o600
    assert Signer.load(path, PASSWORD).address == Signer(b"\x11" * 32).address == made["account"]
    assert "11" * 32 not in path.read_text()
    listed = cli("keys", "list", *files[:2], "--json").document
    assert [key["account"] for key in listed["keys"]] == [made["account"]]
    again = cli("keys", "new", "mine", *files, "--json")
    assert again.code == 4
    assert "already exists" in again.error["cause"]


def test_a_private_key_is_read_from_a_file(files: list[str], tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "private").write_text("0x" + "22" * 32 + "\n")
    result = cli("keys", "import", "./mine.json", "--key-file", str(tmp_path / "private"), *files, "--json")
    assert result.document["account"] == Signer(b"\x22" * 32).address
    assert "22" * 32 not in result.out + result.err


@pytest.mark.parametrize("text", ["", "22" * 31, "xy" * 32, "seed phrase of twelve words"])
def test_a_malformed_private_key_is_refused_and_not_shown(
    text: str, files: list[str], tmp_path: Path, cli: Cli
) -> None:
    (tmp_path / "private").write_text(text)
    result = cli("keys", "import", "mine", "--key-file", str(tmp_path / "private"), *files, "--json")
    assert result.code == 2
    assert not text or text not in result.out + result.err


def test_a_short_password_is_refused(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "weak").write_text("1234567\n")
    result = cli("keys", "new", "mine", "--data-dir", str(tmp_path), "--password-file", "weak", "--json")
    assert result.code == 2
    assert not (tmp_path / "keys").exists()


def test_a_new_password_is_asked_for_twice(tmp_path: Path, cli: Cli) -> None:
    answers: Iterator[str] = iter(["one password", "another one"])
    environment = TestEnvironment(present=True, ask_password=lambda prompt: next(answers))
    result = cli("keys", "new", "mine", "--data-dir", str(tmp_path), "--json", environment=environment)
    assert result.code == 2
    assert "differ" in result.error["cause"]


def test_a_damaged_key_file_is_listed_as_such(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/broken.json").write_text("{")
    listed = cli("keys", "list", "--data-dir", str(tmp_path), "--json")
    assert listed.code == 0
    assert "not a keystore" in listed.document["keys"][0]["problem"]


def test_keys_are_named_or_the_only_one(place: Place, tmp_path: Path, cli: Cli) -> None:
    flags = ["--rpc", place.url, "--data-dir", str(tmp_path)]
    manifest = ["--manifest", str(place.folder / "data/manifests/devnet.json")]
    none = cli("stake", "show", *flags, *manifest, "--json")
    assert none.code == 4
    assert "earnest keys new" in none.error["fix"]
    (tmp_path / "keys").mkdir()
    for role in ("trainer", "validator"):
        (tmp_path / f"keys/{role}.json").write_bytes(place.key(role).read_bytes())
        shown = cli("stake", "show", *flags, *manifest, "--json")
        assert (shown.code == 0) == (role == "trainer")
    named = cli("stake", "show", *flags, *manifest, "--keystore", "validator", "--json")
    assert named.document["account"] == ADDRESS["validator"]


def test_devnet_writes_the_key_files_of_its_accounts(files: list[str], tmp_path: Path, cli: Cli) -> None:
    flags = ["--port", "0", "--accounts", "2", "--seed", SEED.decode(), "--keys", str(tmp_path / "keys")]
    for _ in range(2):
        result = cli("devnet", *flags, *files, "--json")
        assert result.code == 0
    accounts = result.document["accounts"]
    assert [one["account"] for one in accounts] == [ADDRESS["sponsor"], ADDRESS["trainer"]]
    assert Signer.load(Path(accounts[1]["key_file"]), PASSWORD).address == ADDRESS["trainer"]
    other = cli("devnet", *flags[:4], "--seed", "other", *flags[6:], *files, "--json")
    assert other.code == 2
    assert "holds another key" in other.error["cause"]


def test_devnet_shows_its_address_or_why_it_cannot_listen(bare: Place, cli: Cli) -> None:
    served = cli("devnet", "--port", "0", "--accounts", "1", "--json").document
    assert served["url"].startswith("http://127.0.0.1:") and not served["url"].endswith(":0")
    assert served["chain_id"] == 1337
    taken = cli("devnet", "--port", bare.url.rpartition(":")[2], "--accounts", "1", "--json")
    assert taken.code == 2
    assert "cannot listen" in taken.error["cause"]
