"""Endpoints that are down, on another chain, or give invalid answers; networks and files that are wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli.conftest import ADDRESS, Place, Result

Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def babbler() -> Iterator[str]:
    """A web server that answers everything with a page."""

    class Page(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>Welcome</html>")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_no_endpoint_answers(place: Place, cli: Cli) -> None:
    result = cli("stake", "show", *place.acting("trainer", "http://127.0.0.1:9/secret-key"), "--json")
    assert result.code == 3
    assert result.error["code"] == "endpoint_down"
    assert "http://127.0.0.1:9" in result.error["cause"]
    assert "secret-key" not in result.out + result.err


def test_the_wrong_chain(place: Place, cli: Cli) -> None:
    result = cli("deploy", "plan", *place.acting("sponsor"), "--network", "anvil", "--json")
    assert result.code == 3
    assert result.error["code"] == "wrong_chain"
    assert "serves chain 1337, not 31337" in result.error["cause"]


def test_garbage(babbler: str, place: Place, cli: Cli) -> None:
    result = cli("stake", "show", *place.acting("trainer", babbler), "--json")
    assert result.code == 3
    assert result.error["code"] == "bad_answer"


def test_a_second_endpoint_takes_over(place: Place, babbler: str, cli: Cli) -> None:
    flags = ["--rpc", "http://127.0.0.1:9", "--rpc", babbler, *place.acting("trainer")]
    assert cli("stake", "show", *flags, "--json").document["account"] == ADDRESS["trainer"]


def test_a_chain_without_our_contracts(bare: Place, cli: Cli) -> None:
    result = cli("stake", "show", *bare.acting("trainer"), "--json")
    assert result.code == 2
    assert result.error["code"] == "manifest"


def test_a_manifest_of_contracts_that_are_not_there(place: Place, bare: Place, cli: Cli) -> None:
    manifest = ["--manifest", str(place.folder / "data/manifests/devnet.json")]
    result = cli("stake", "show", *bare.acting("trainer"), *manifest, "--json")
    assert result.code == 3
    assert "there is no contract at" in result.error["cause"]


def test_a_manifest_of_another_chain(place: Place, tmp_path: Path, cli: Cli) -> None:
    manifest = json.loads((place.folder / "data/manifests/devnet.json").read_text())
    (tmp_path / "other.json").write_text(json.dumps(manifest | {"chain_id": 1}))
    result = cli("status", *place.reading(), "--manifest", "other.json", "--json")
    assert result.code == 2
    assert "the manifest is of chain 1" in result.error["cause"]


def test_an_unknown_network(cli: Cli) -> None:
    result = cli("status", "--network", "mainnet", "--json")
    assert result.code == 2
    assert "devnet, anvil, sepolia" in result.error["fix"]


def test_a_network_without_an_endpoint(place: Place, tmp_path: Path, cli: Cli) -> None:
    manifest = json.loads((place.folder / "data/manifests/devnet.json").read_text())
    (tmp_path / "other.json").write_text(json.dumps(manifest | {"chain_id": 11155111}))
    result = cli("deploy", "verify", "--network", "sepolia", "--manifest", "other.json", "--json")
    assert result.code == 2
    assert "EARNEST_RPC_SEPOLIA" in result.error["fix"]


# Settings


def test_flags_come_before_variables_before_the_file(
    place: Place, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = "http://127.0.0.1:9"
    acting = ["--data-dir", str(place.folder / "data"), "--keystore", str(place.key("trainer"))]
    (tmp_path / "earnest.toml").write_text(f'rpc = ["{place.url}"]\n')
    assert cli("stake", "show", *acting, "--json").code == 0
    monkeypatch.setenv("EARNEST_RPC", nowhere)
    assert cli("stake", "show", *acting, "--json").code == 3
    assert cli("stake", "show", *acting, "--rpc", place.url, "--json").code == 0
    monkeypatch.delenv("EARNEST_RPC")
    (tmp_path / "earnest.toml").write_text("")
    monkeypatch.setenv("EARNEST_RPC_DEVNET", place.url)
    assert cli("stake", "show", *acting, "--json").code == 0
    monkeypatch.setenv("EARNEST_RPC", nowhere)
    assert cli("stake", "show", *acting, "--json").code == 3


def test_a_wrong_setting_names_it(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "earnest.toml").write_text('colour = "red"\n')
    result = cli("status", "--json")
    assert result.code == 2
    assert result.error["code"] == "settings"
    assert "colour" in result.error["cause"]


def test_errors_for_people_say_cause_and_fix_on_stderr_without_a_traceback(cli: Cli) -> None:
    result = cli("status", "--network", "mainnet")
    assert result.out == ""
    assert result.err == (
        "error: unknown network mainnet\n"
        "  fix: choose one of devnet, anvil, sepolia, base-sepolia, hoodi, 0g-galileo\n"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["run", "show", "0"],
        ["run", "sync", "1", "--role", "trainer", "--seat", "256"],
        ["run", "sync", "1", "--role", "trainer"],
        ["run", "join", "1", "--role", "sponsor"],
        ["run", "show", "one"],
        ["seat", "operator", "1", "0xd5e46E8f29fc67aF354b9CBa3d1f0000000000Aa"],
        ["penalty", "contest", "0x1234"],
        ["trainer", "start", "1", "--poll", "0"],
        ["devnet", "--block-time", "0"],
    ],
    ids=" ".join,
)
def test_invalid_arguments_are_a_usage_error(words: list[str], place: Place, cli: Cli) -> None:
    flags = place.acting("trainer") if words[0] in ("seat", "trainer") or words[1] in ("sync", "join") else []
    result = cli(*words, *flags, "--json")
    assert result.code == 2, result
    assert result.error["fix"]


def test_a_uri_that_the_contract_cannot_hold(place: Place, cli: Cli) -> None:
    url = ["--public-url", "https://example.org/" + "a" * 240]
    result = cli("run", "join", "1", "--role", "trainer", *url, *place.acting("trainer"), "--json")
    assert result.code == 1
    assert "at most 256 bytes" in result.error["cause"]


def test_a_folder_that_cannot_be_written_is_no_traceback(place: Place, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "file").write_text("")
    flags = ["--rpc", place.url, "--manifest", str(place.folder / "data/manifests/devnet.json")]
    flags += ["--keystore", str(place.key("trainer")), "--password-file", str(place.folder / "password")]
    result = cli("stake", "deposit", "1", *flags, "--data-dir", str(tmp_path / "file"), "--json")
    assert result.code == 5
    result = cli("demo", "--output", str(tmp_path / "file"), "--json")
    assert result.code == 5
