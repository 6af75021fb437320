"""Deployment from the command line: planned, executed, verified, and repeated after a local chain restarted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from earnest.deploy.devnet.chain import Devnet
from earnest.deploy.devnet.server import serve
from tests.cli.conftest import ADDRESS, BEAT_S, COIN, Place, Result

Cli = Callable[..., Result]


def test_the_planned_contracts_are_deployed_and_verify(bare: Place, tmp_path: Path, cli: Cli) -> None:
    manifest = ["--manifest", str(tmp_path / "manifest.json")]
    planned = cli("deploy", "plan", *bare.acting("sponsor"), *manifest, "--json").document
    assert not (tmp_path / "manifest.json").exists()
    deployed = cli("deploy", "run", *bare.acting("sponsor"), *manifest, "--json").document
    assert {one["name"]: one["address"] for one in planned["contracts"]} == deployed["contracts"]
    assert planned["token"] == deployed["token"] == deployed["contracts"]["PlayToken"]
    verified = cli("deploy", "verify", *bare.reading(), *manifest, "--json")
    assert verified.code == 0
    assert verified.document["ok"]
    again = cli("deploy", "plan", *bare.acting("sponsor"), *manifest, "--json").document
    assert again["first_nonce"] == planned["first_nonce"] + len(planned["contracts"])
    assert planned["p256_precompile"] is deployed["p256_precompile"] is True


def test_a_finished_deployment_stays_unless_another_is_asked_for(
    bare: Place, tmp_path: Path, cli: Cli
) -> None:
    flags = [*bare.acting("sponsor"), "--manifest", str(tmp_path / "manifest.json"), "--json"]
    first = cli("deploy", "run", *flags).document
    repeated = cli("deploy", "run", *flags)
    assert (repeated.code, repeated.document) == (0, first)
    assert "nothing to do" in repeated.err
    other = cli("deploy", "run", "--again", *flags).document
    assert set(other["contracts"].values()).isdisjoint(first["contracts"].values())


def test_a_changed_manifest_does_not_verify(place: Place, tmp_path: Path, cli: Cli) -> None:
    manifest = json.loads((place.folder / "data/manifests/devnet.json").read_text())
    manifest["current"]["contracts"]["StakeVault"]["runtime_hash"] = "0x" + "00" * 32
    (tmp_path / "changed.json").write_text(json.dumps(manifest))
    result = cli("deploy", "verify", *place.reading(), "--manifest", "changed.json", "--json")
    assert result.code == 1
    failed = [(c["contract"], c["question"]) for c in result.document["checks"] if not c["ok"]]
    assert failed == [("StakeVault", "code hash")]


def test_a_local_chain_that_was_started_anew_is_deployed_to_again(
    place: Place, tmp_path: Path, cli: Cli
) -> None:
    def acting(url: str) -> list[str]:
        flags = place.acting("sponsor", url)
        return [str(tmp_path / "data") if flag.endswith("/data") else flag for flag in flags]

    addresses = []
    for birth in (1_700_000_000, 1_700_000_001):
        devnet = Devnet({ADDRESS["sponsor"]: 100 * COIN}, genesis_time=birth)
        with serve(devnet, port=0, block_time_s=BEAT_S, clock=time.time) as server:
            flags = acting(server.url)
            result = cli("deploy", "run", *flags, "--json")
            assert result.code == 0, result
            assert ("chain that is gone" in result.err) == (birth == 1_700_000_001)
            addresses.append(result.document["contracts"])
            assert cli("deploy", "verify", *flags[:4]).code == 0
    assert addresses[0] == addresses[1]


def test_a_network_of_value_needs_a_token(cli: Cli, place: Place) -> None:
    flags = ["--network", "sepolia", "--keystore", str(place.key("sponsor")), "--rpc", place.url]
    result = cli("deploy", "plan", *flags, "--data-dir", str(place.folder / "none"), "--json")
    assert result.code == 2
    assert "--token" in result.error["fix"]
