"""`earnest plan`: a round's bytes and seconds, published figures, and the price of privacy."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cli.conftest import Result

Cli = Callable[..., Result]


def test_a_plan_agrees_with_itself(cli: Cli) -> None:
    flags = ["--parameters", "1.3B", "--trainers", "10", "--validators", "3", "--h", "50", "--step-s", "2"]
    plan = cli("plan", "training", *flags, "--json").document
    assert (plan["parameters"], plan["copies"], plan["windows_s"]) == (1_300_000_000, 12, 20.0)
    assert plan["round_s"] == pytest.approx(plan["compute_s"] + plan["wire_s"] + plan["windows_s"])
    assert plan["utilisation"] == pytest.approx(100 / plan["round_s"])
    assert plan["sent_bytes"] == pytest.approx(12 * plan["payload_bytes"])
    assert [row["codec"] for row in plan["codecs"]] == ["dense-bf16", "int8", "topk-2bit", "lowrank-int4"]
    chosen = next(row for row in plan["codecs"] if row["codec"] == plan["codec"])
    assert chosen["bits"] == plan["bits"]
    assert chosen["speedup"] == pytest.approx(plan["allreduce"]["fp32"]["speedup"])
    assert plan["allreduce"]["fp32"]["fewer_bytes"] == pytest.approx(
        2 * plan["allreduce"]["bf16"]["fewer_bytes"]
    )


def test_a_device_may_be_described_by_its_tokens_per_second(cli: Cli) -> None:
    plan = cli("plan", "training", "--tokens-per-s", "1000", "--step-tokens", "500", "--json").document
    assert (plan["step_s"], plan["compute_s"], plan["windows_s"]) == (0.5, 15.0, 3.0)


def test_prices_are_added_where_they_are_given(cli: Cli) -> None:
    bare = cli("plan", "training", "--json").document["chain"]
    assert bare["gas"]["all"] > 8 * bare["gas"]["trainer"]
    assert "coins" not in bare and "bond" not in bare
    flags = ["--gwei", "2", "--coin-price", "3000", "--bond", "150", "--rounds", "10"]
    chain = cli("plan", "training", *flags, "--json").document["chain"]
    assert chain["coins"]["all"] == pytest.approx(chain["gas"]["all"] * 2e-9)
    assert chain["cost_run"] == pytest.approx(chain["coins"]["all"] * 3000 * 10)
    assert chain["bond_at_risk"] == {"unrevealed": 1.5, "worst": 75.0}


def test_the_tables_teach(cli: Cli) -> None:
    text = cli("plan", "training", "--gwei", "1", "--bond", "100").out
    for word in (
        "utilisation",
        "bits per parameter",
        "AllReduce at every step (ring",
        "topk-2bit",
        "Gas of a round",
        "A bond of 100 tokens",
    ):
        assert word in text


def test_published_figures_are_printed_with_marks_and_reasons(cli: Cli) -> None:
    document = cli("plan", "training", "--check-published", "--json").document
    assert document["tested"] == 37
    assert document["agreeing"] == sum(check["agrees"] for check in document["checks"] if check["tested"])
    text = cli("plan", "training", "--check-published").out
    for word in ("NO", "not tested", "[S] second-hand", "Covenant-72B 2603.08163", "DiLoCoX", "Assumed"):
        assert word in text


@pytest.mark.parametrize("size", ["0", "-1", "many", "1.5X", "1e30"])
def test_sizes_that_are_none(size: str, cli: Cli) -> None:
    result = cli("plan", "training", f"--parameters={size}", "--json")
    assert result.code == 2
    assert "not a number of parameters" in result.error["cause"]


def test_a_codec_that_cannot_be_is_a_wrong_command_line(cli: Cli) -> None:
    assert cli("plan", "training", "--k", "5000", "--json").code == 2


def test_privacy_both_ways(cli: Cli) -> None:
    pytest.importorskip("dp_accounting")
    given = cli(
        "plan", "privacy", "--epsilon", "8", "--rounds", "50", "--parameters", "10k", "--json"
    ).document
    back = cli("plan", "privacy", "--noise", str(given["noise"]), "--rounds", "50", "--json").document
    assert back["epsilon"] == pytest.approx(8, rel=1e-6)
    assert given["noise_to_signal"] == pytest.approx(given["noise"] * 100)
    assert given["noise_to_signal_of_mean"] == pytest.approx(given["noise_to_signal"] / 8**0.5)
    assert "Protected" in cli("plan", "privacy", "--noise", "4").out
    without = cli("plan", "privacy", "--noise", "0").out
    assert "no promise" in without
    assert "Protected" not in without


@pytest.mark.parametrize("flags", [[], ["--noise", "1", "--epsilon", "1"]])
def test_privacy_asks_for_one_of_the_two(flags: list[str], cli: Cli) -> None:
    assert cli("plan", "privacy", *flags, "--json").code == 2
