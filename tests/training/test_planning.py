"""The planning model: its arithmetic by hand, its codec sizes from the codecs, its figures against published ones."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from earnest.protocol.recipe import CODECS, CodecChoice
from earnest.training.codecs import make_codec
from earnest.training.planning import (
    BACKWARD,
    SAMPLED,
    Link,
    Training,
    allreduce_step_s,
    bits_per_parameter,
    decoder_spec,
    fewer_bytes,
    gas_cost,
    needed_bandwidth,
    plan_round,
    ring_bits,
    round_gas,
    speedup,
)
from earnest.training.published_figures import FLAT_TOPK_BITS, GRID, PublishedFigure, published_figures

PLAN = Training(
    parameters=10**9,
    trainers=5,
    inner_steps=30,
    step_s=2.0,
    step_tokens=1000,
    link=Link(up=100e6, down=400e6),
    bits=0.8,
    copies=2,
    windows_s=10.0,
)
GAS = json.loads((files("earnest.contracts") / "gas.json").read_text())
CHECKS = published_figures()


def of(what: str, unit: str = "") -> PublishedFigure:
    (found,) = (check for check in CHECKS if check.what == what and check.unit.startswith(unit))
    return found


# Rounds


def test_a_round_by_hand() -> None:
    round = plan_round(PLAN)
    assert round.payload_bytes == 1e8
    assert (round.sent_bytes, round.fetched_bytes) == (2e8, 4e8)
    assert round.wire_s == 8 * 2e8 / 100e6 + 8 * 4e8 / 400e6 == 24
    assert (round.compute_s, round.round_s, round.idle_s) == (60, 94, 34)
    assert round.utilisation == pytest.approx(60 / 94)
    assert round.tokens_per_s == pytest.approx(5 * 30 * 1000 / 94)


@pytest.mark.parametrize("overlap", ["delayed", "eager"])
def test_overlap_hides_what_is_shorter_than_training(overlap: str) -> None:
    hidden = plan_round(replace(PLAN, overlap=overlap))  # type: ignore[arg-type]
    assert (hidden.round_s, hidden.utilisation) == (60, 1.0)
    slow = plan_round(replace(PLAN, overlap=overlap, windows_s=50.0))  # type: ignore[arg-type]
    assert (slow.round_s, slow.idle_s) == (74, 14)


def test_allreduce_is_a_ring_behind_the_backward_pass() -> None:
    wire = 2 * 4 / 5 * 32e9 / 100e6
    assert ring_bits(10**9, 5, 32) == 2 * 4 / 5 * 32e9
    assert allreduce_step_s(PLAN) == pytest.approx(2 + wire - 2 * BACKWARD)
    assert allreduce_step_s(replace(PLAN, link=Link(1e15, 1e15))) == 2.0
    assert allreduce_step_s(replace(PLAN, trainers=1)) == 2.0
    assert speedup(PLAN) == pytest.approx(allreduce_step_s(PLAN) * 30 / 94)
    assert speedup(PLAN, 16) < speedup(PLAN)


def test_bytes_saved_count_every_copy() -> None:
    assert fewer_bytes(PLAN) == pytest.approx(2 * 4 / 5 * 4e9 * 30 / 2e8)


@pytest.mark.parametrize(
    "wrong", [{"parameters": 0}, {"step_s": 0.0}, {"bits": 0.0}, {"windows_s": -1.0}, {"copies": 0}]
)
def test_plans_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        replace(PLAN, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="link"):
        Link(0, 1)


# Codecs


@pytest.mark.parametrize("parameters", [1, 127, 5000, 3_000_000, 10**9, 107 * 10**9])
def test_a_layout_has_exactly_the_parameters(parameters: int) -> None:
    assert decoder_spec(parameters).size == parameters


@pytest.mark.parametrize("name", CODECS)
def test_bits_are_the_codec_s_own(name: str) -> None:
    choice, spec = CodecChoice(name), decoder_spec(1_000_000)
    codec = make_codec(choice, spec)
    generator = torch.Generator().manual_seed(0)
    update = spec.split(torch.randn(spec.size, generator=generator))
    payload = len(codec.encode(update).payload)
    bits = bits_per_parameter(choice, 1_000_000)
    assert payload * 8 / 1_000_000 <= bits == codec.payload_bytes * 8 / 1_000_000


@pytest.mark.parametrize("name", ["dense-bf16", "int8", "topk-2bit"])
def test_larger_models_cost_the_same_bits(name: str) -> None:
    choice = CodecChoice(name)
    assert bits_per_parameter(choice, 72 * 10**9) == bits_per_parameter(choice, SAMPLED)


def test_wide_matrices_cost_fewer_bits_at_the_same_rank() -> None:
    choice = CodecChoice("lowrank-int4")
    assert bits_per_parameter(choice, 10**9) < bits_per_parameter(choice, 10**7) / 2


# The chain


def test_gas_is_exact_for_the_round_that_was_measured() -> None:
    gas = round_gas(GAS, 256, 16)
    assert gas.trainer == GAS["commit"] + GAS["reveal"]
    assert gas.all == pytest.approx(256 * GAS["trainer_round_256x16"], rel=1e-6)


def test_fewer_seats_use_less_gas() -> None:
    assert round_gas(GAS, 8, 4).all < round_gas(GAS, 9, 4).all < round_gas(GAS, 9, 5).all
    assert gas_cost(2_000_000, 0.5) == pytest.approx(0.001)


# Published figures


@pytest.mark.parametrize(
    "what",
    [
        *(
            f"{size}, {method}"
            for size in ("1B", "10B", "100B")
            for method in ("data parallel", "streaming, H 100")
        ),
        "1B, inner overlap, fp4, H 30",
        "10B, inner overlap, fp4, H 30",
        "10B, outer overlap, fp4, H 30",
    ],
)
def test_bandwidths_agree_within_a_place_of_the_published_grid(what: str) -> None:
    assert 1 / GRID <= of(what).ratio <= GRID


@pytest.mark.parametrize(
    ("size", "step", "fragments", "published"), [(1, 0.1, 8, 2.0), (10, 0.8, 16, 1.4), (100, 4.9, 36, 1.1)]
)
def test_inner_overlap_at_h_100_fits_with_two_steps_hidden(
    size: int, step: float, fragments: int, published: float
) -> None:
    rate = needed_bandwidth(size * 10**9, 4, step, every=100, fragments=fragments, hidden_steps=2) / 1e9
    assert 1 / GRID <= rate / published <= 1


def test_all_nine_hours_agree_within_five_percent() -> None:
    hours = [check for check in CHECKS if check.unit == "hours"]
    assert len(hours) == 9
    assert all(0.95 <= check.ratio <= 1.05 for check in hours)


def test_published_volumes_contradict_the_published_hours() -> None:
    dense, small = of("1B, 25B tokens, data parallel", "TB"), of("1B, 25B tokens, streaming", "TB")
    assert not dense.agrees
    assert dense.published * 8e12 / 1e9 / 3600 > 8 * 109
    assert "980 h" in dense.note
    assert dense.published / small.published == pytest.approx(dense.model / small.model, rel=0.01)


def test_covenant_agrees_on_size_and_time_but_not_on_its_links() -> None:
    assert of("72B, size against fp32").ratio == pytest.approx(1, abs=0.005)
    assert of("72B, utilisation: 20 min and 70 s of sync").ratio == pytest.approx(1, abs=0.001)
    assert not of("72B, sync over 110 and 500 Mbit/s").agrees
    assert {check.mark for check in CHECKS if "Covenant" in check.source} == {"S"}
    assert FLAT_TOPK_BITS * 4096 == 64 * 14


def test_dilocox_is_solved_for_and_so_tests_nothing() -> None:
    found = [check for check in CHECKS if "DiLoCoX" in check.source]
    assert [check.published for check in found] == [357, 357]
    assert all(not check.tested and check.ratio == pytest.approx(1) for check in found)


def test_every_disagreement_says_why() -> None:
    assert all(check.note for check in CHECKS if not check.agrees)
    assert {check.mark for check in CHECKS} == {"V", "S"}


def test_the_page_says_how_many_agree() -> None:
    page = (Path(__file__).parents[2] / "docs/plan.md").read_text().split()
    tested = [check for check in CHECKS if check.tested]
    assert f"{sum(check.agrees for check in tested)} of {len(tested)} agree" in " ".join(page)


def test_no_link_carries_more_than_its_rate() -> None:
    never_late = needed_bandwidth(10**9, 4, 0.1, every=30, hidden_steps=10**6)
    assert never_late == pytest.approx(4e9 / (30 * 0.1 / 0.95))
