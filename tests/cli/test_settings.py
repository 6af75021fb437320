"""Settings: flags override the environment, which overrides the file; every mistake is reported, no secret shown."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from earnest.cli.settings import Settings, SettingsError

TOKEN = "9aa3d95b3bc440fa88ea12eaa4456161"


@pytest.fixture(autouse=True)
def empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder without a file, an environment without our variables."""
    monkeypatch.chdir(tmp_path)
    for name in [*Settings.model_fields, "rpc_sepolia"]:
        monkeypatch.delenv(f"EARNEST_{name.upper()}", raising=False)
    return tmp_path


def test_nothing_has_to_be_set() -> None:
    settings = Settings.load()
    assert settings.network == "devnet"
    assert settings.rpc == ()
    assert settings.data_dir == Path.home() / ".earnest"
    assert settings.serve_address is None
    assert settings.keystore_password() is None


def test_flags_come_before_environment_before_file(
    empty_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (empty_place / "earnest.toml").write_text(
        'network = "file"\nserve = "file:1"\nconfirmations = 3\nrpc = ["http://file:1", "http://file:2"]\n'
    )
    monkeypatch.setenv("EARNEST_NETWORK", "environment")
    monkeypatch.setenv("EARNEST_SERVE", "environment:1")
    settings = Settings.load({"network": "flag", "serve": None})
    assert settings.network == "flag"
    assert settings.serve == "environment:1"
    assert settings.confirmations == 3
    assert settings.rpc == ("http://file:1", "http://file:2")


def test_an_empty_variable_is_not_set(empty_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (empty_place / "earnest.toml").write_text('network = "file"\n')
    monkeypatch.setenv("EARNEST_NETWORK", "")
    assert Settings.load().network == "file"


def test_endpoints_are_separated_by_commas_in_flags_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EARNEST_RPC", "http://one:1, https://two/key,")
    assert Settings.load().rpc == ("http://one:1", "https://two/key")
    assert Settings.load({"rpc": ["http://three"]}).rpc == ("http://three",)
    assert Settings.load({"rpc": "http://three,http://four"}).rpc == ("http://three", "http://four")


def test_a_networks_own_endpoint_variable_is_not_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EARNEST_RPC_SEPOLIA", "https://sepolia/key")
    assert Settings.load().rpc == ()


@pytest.mark.parametrize("how", ["flag", "environment"])
def test_the_file_can_be_named(how: str, empty_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (empty_place / "other.toml").write_text('network = "other"\n')
    if how == "environment":
        monkeypatch.setenv("EARNEST_CONFIG", "other.toml")
    flags = {"config": Path("other.toml")} if how == "flag" else {}
    assert Settings.load(flags).network == "other"


def test_a_named_file_must_be_there() -> None:
    with pytest.raises(SettingsError, match=r"there is no file missing\.toml"):
        Settings.load({"config": "missing.toml"})


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("network = ", "is not TOML"),
        ('netwrok = "sepolia"', "netwrok"),
        ("confirmations = -1", "confirmations"),
        ("network = 7", "network"),
    ],
)
def test_a_wrong_file_is_named(content: str, told: str, empty_place: Path) -> None:
    (empty_place / "earnest.toml").write_text(content)
    with pytest.raises(SettingsError, match=told) as caught:
        Settings.load()
    assert "earnest.toml" in caught.value.fix


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("serve", "8000"),
        ("serve", ":8000"),
        ("serve", "localhost:"),
        ("serve", "localhost:65536"),
        ("serve", "localhost:-1"),
        ("public_url", "localhost:8000"),
        ("rpc", "http://one,ftp://two"),
        ("confirmations", "soon"),
        ("log_level", "loud"),
        ("log_format", "xml"),
        ("unknown", "x"),
    ],
)
def test_a_wrong_flag_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        Settings.load({name: value})


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(SettingsError, match=r"serve.*confirmations|confirmations.*serve"):
        Settings.load({"serve": "here", "confirmations": -1})


@pytest.mark.parametrize(
    ("serve", "address"),
    [
        ("0.0.0.0:8000", ("0.0.0.0", 8000)),
        ("[::1]:0", ("::1", 0)),
        ("node.example.org:65535", ("node.example.org", 65535)),
    ],
)
def test_serve_is_host_and_port(serve: str, address: tuple[str, int]) -> None:
    assert Settings.load({"serve": serve}).serve_address == address


def test_a_home_folder_is_expanded() -> None:
    settings = Settings.load({"keystore": "~/keys/trainer.json", "data_dir": "~/node"})
    assert settings.keystore == Path.home() / "keys/trainer.json"
    assert settings.data_dir == Path.home() / "node"


def test_the_password_is_read_from_its_file_without_the_line_end(empty_place: Path) -> None:
    file = empty_place / "password"
    for content, password in (
        (b"two words \n", "two words "),
        (b"word\r\n", "word"),
        (b"", ""),
        (b"word", "word"),
    ):
        file.write_bytes(content)
        assert Settings.load({"password_file": str(file)}).keystore_password() == password


def test_a_password_given_comes_before_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EARNEST_PASSWORD", "given")
    assert Settings.load({"password_file": "missing"}).keystore_password() == "given"


def test_an_unreadable_password_file_is_an_error(empty_place: Path) -> None:
    (empty_place / "binary").write_bytes(b"\xff\xfe")
    for name in ("missing", "binary"):
        with pytest.raises(SettingsError, match=f"password file {name} cannot be read") as refused:
            Settings.load({"password_file": name}).keystore_password()
        assert "first line" in refused.value.fix


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings.load().network = "another"


def test_no_secret_is_shown() -> None:
    settings = Settings.load({"rpc": f"https://node.example.org/v3/{TOKEN}", "password": "correct horse"})
    for text in (repr(settings), str(settings)):
        assert TOKEN not in text
        assert "correct horse" not in text


def test_an_error_does_not_quote_the_value() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.load({"rpc": f"wss://node/{TOKEN}", "public_url": f"node/{TOKEN}"})
    assert TOKEN not in str(caught.value)
    with pytest.raises(ValidationError) as raw:
        Settings(rpc=(f"wss://node/{TOKEN}",))
    assert TOKEN not in str(raw.value)
