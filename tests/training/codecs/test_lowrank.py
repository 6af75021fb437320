"""lowrank-int4: exact on every machine, close to the best factors, and one form of each factorisation."""

import hashlib
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch

from earnest.training.codecs import LowrankInt4
from earnest.training.codecs.lowrank import Factors
from earnest.training.diloco.state import Spec
from earnest.training.diloco.tensorfile import PayloadError
from tests.training.codecs.updates import bf16, safetensors_file

SPEC = Spec((("a", (8, 9)), ("b", (3,)), ("c", (2, 30)), ("d", (10, 8))))  # a and d are matrices for rank 2
CODEC = LowrankInt4(SPEC, rank=2)
Column = tuple[int, list[int], list[int]]  # weight, p, q


def matrix(m: int, n: int, *columns: tuple[int, int, int]) -> list[Column]:
    """Columns of which p starts with the second number given, q with the third; the rest counts up to 7."""
    ramp = [i % 8 for i in range(1, 40)]
    return [(weight, [p, *ramp[: m - 1]], [q, *ramp[: n - 1]]) for weight, p, q in columns]


A = matrix(8, 9, (4095, 1, 7), (2, 2, -7))
D = matrix(10, 8, (2048, 1, 2), (2048, 1, 1))
NONE: list[Column] = [(0, [0] * 10, [0] * 8)] * 2


def lowrank_file(
    a: list[Column], d: list[Column], exponents: tuple[int, int] = (126, 100), **changes: bytes
) -> bytes:
    """A second writer, in plain Python; `changes` replace whole tensors."""
    columns = [*a, *d]
    sides = [[p for _, p, _ in a], [q for _, _, q in a], [p for _, p, _ in d], [q for _, _, q in d]]
    codes = [code for side in sides for factor in side for code in factor]
    stream = sum((code & 15) << 4 * i for i, code in enumerate(codes))
    weights = struct.pack(f"<{len(columns)}H", *[weight for weight, _, _ in columns])
    parts: dict[str, tuple[str, list[int] | None, bytes]] = {
        "dense": ("BF16", [63], struct.pack("<63H", *[bf16(1.5)] * 63)),
        "factors": ("U8", None, stream.to_bytes(-(-len(codes) // 2), "little")),
        "units": ("U8", None, bytes(exponents)),
        "weights": ("U8", [2, len(a), 2], weights),
    }
    for name, body in changes.items():
        parts[name] = (parts[name][0], parts[name][1], body)
    return safetensors_file(parts)


def test_a_matrix_is_the_sum_of_its_weighted_products() -> None:
    update = CODEC.decode(lowrank_file(A, D))
    got = update.dense()
    for name, columns, unit in (("a", A, 1.0), ("d", D, 2.0**-26)):
        expected = sum(weight * np.outer(p, q) for weight, p, q in columns) * unit
        assert np.array_equal(got[name].numpy(), expected)
    assert (got["b"] == 1.5).all()
    assert (got["c"] == 1.5).all()
    assert update.norm == pytest.approx(update.flat().double().norm().item(), rel=1e-15)


def changed(columns: list[Column], at: int, **fields: object) -> list[Column]:
    names = ("weight", "p", "q")
    column = tuple(fields.get(name, value) for name, value in zip(names, columns[at], strict=True))
    return [*columns[:at], column, *columns[at + 1 :]]  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (lowrank_file(changed(A, 0, weight=4096), D), "a weight is above 4095"),
        (lowrank_file(A, D, (230, 100)), "a unit is above 229"),
        (lowrank_file(changed(A, 0, weight=2047), D), "the first weight is below 2048"),
        (lowrank_file(A, NONE), "a matrix of zeros has a unit"),
        (lowrank_file(A[::-1], D), "the first weight is below 2048"),
        (lowrank_file(changed(A, 1, weight=4095), D), "columns of one weight do not descend"),
        (lowrank_file(A, D[::-1]), "columns of one weight do not descend"),
        (lowrank_file(A, [D[0], D[0]]), "columns of one weight do not descend"),
        (lowrank_file(A, changed(D, 1, weight=2049)), "weights do not descend"),
        (lowrank_file(changed(A, 1, weight=0), D), "a column without weight has codes"),
        (lowrank_file(changed(A, 1, p=[6] * 8), D), "the largest code of a p is not 7"),
        (lowrank_file(changed(A, 0, q=[-6] * 9), D), "the largest code of a q is not 7"),
        (lowrank_file(changed(A, 1, p=[0, -1, *[7] * 6]), D), "a column is turned around"),
        (lowrank_file(changed(A, 1, p=[-8, *[7] * 7]), D), "a code is -8"),
        (lowrank_file(A, D, dense=struct.pack("<63H", *[0x7FC0] * 63)), "NaN"),
        (lowrank_file(A, D, dense=struct.pack("<63H", *[0x8000] * 63)), "negative zero"),
        (lowrank_file(A[:1], D[:1]), "rank is 1, the recipe allows 2 to 2"),
        (lowrank_file(A, D, units=b"\x7e\x64\0"), "wrong shape of units: expected [2]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_lowrank_refuses(payload: bytes, reason: str) -> None:
    with pytest.raises(PayloadError) as caught:
        CODEC.decode(payload)
    assert caught.value.reason == reason


@pytest.mark.parametrize("shape", [[2, 2**40, 2], [2, 0, 2], [2**62, 2, 2], [2, 2], []])
def test_a_rank_that_cannot_be_is_refused_before_anything_is_made_of_it(shape: list[int]) -> None:
    parts = {"weights": ("U8", shape, bytes(8))}
    with pytest.raises(PayloadError):
        CODEC.decode(safetensors_file(parts))  # type: ignore[arg-type]


def test_a_matrix_of_zeros_has_one_form() -> None:
    update = CODEC.decode(lowrank_file(A, NONE, (126, 0)))
    assert not update.dense()["d"].any()
    assert CODEC.encode(update.dense()).update.dense()["d"].equal(torch.zeros(10, 8))


def test_one_product_in_two_forms_is_one_update() -> None:
    one = [(2048, [7, 0, 0, 0, 0, 0, 0, 0], [7] * 9), (2048, [0, 7, 0, 0, 0, 0, 0, 0], [7] * 9)]
    two = [(2048, [7, 7, 0, 0, 0, 0, 0, 0], [7] * 9), (0, [0] * 8, [0] * 9)]
    first, second = (CODEC.decode(lowrank_file(columns, D)) for columns in (one, two))
    assert first.flat().equal(second.flat())
    assert first.payload != second.payload
    assert first.content == second.content
    assert first.norm == second.norm
    assert first.content != CODEC.decode(lowrank_file(A, D)).content


WIDE = Spec((("w", (300, 400)), ("x", (70_000,))))


def low_rank_update(noise: float = 0.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    left, right = torch.randn(300, 4, generator=generator), torch.randn(4, 400, generator=generator)
    w = left * torch.tensor([8.0, 4.0, 2.0, 1.0]) @ right + noise * torch.randn(300, 400, generator=generator)
    return {"w": w, "x": torch.randn(70_000, generator=generator)}


def error(codec: LowrankInt4, update: dict[str, torch.Tensor], rounds: int = 1) -> float:
    """Share of the matrix's energy that is lost, when `rounds` start from where the last one ended."""
    encoded = codec.encode(update)
    for _ in range(rounds - 1):
        encoded = codec.encode(update, encoded.state)
    lost = update["w"] - encoded.update.dense()["w"]
    return float(lost.square().sum() / update["w"].square().sum())


def test_a_matrix_of_that_rank_is_kept_but_for_four_bits() -> None:
    assert error(LowrankInt4(WIDE, 4), low_rank_update()) < 0.05


def test_a_warm_start_finds_better_factors() -> None:
    update = low_rank_update(noise=3.0)
    codec = LowrankInt4(WIDE, 4)
    assert error(codec, update, rounds=4) < error(codec, update) - 0.01


def test_starts_are_kept_though_a_round_brought_zeros() -> None:
    codec = LowrankInt4(WIDE, 4)
    state = codec.encode({"w": torch.zeros(300, 400), "x": torch.zeros(70_000)}).state
    update = low_rank_update()
    lost = update["w"] - codec.encode(update, state).update.dense()["w"]
    assert lost.square().sum() < 0.05 * update["w"].square().sum()


def test_products_are_exact_at_the_largest_codes_of_the_highest_rank() -> None:
    weights, ends = np.full(64, 4095), np.full((64, 300), 7, np.int8)
    signs = np.where(np.arange(64) % 3, 1, -1).astype(np.int8)[:, None]
    for p in (ends, ends * signs):
        matrix = Factors(-126, weights, p, ends)
        expected = (p.astype(np.int64).T * weights) @ ends.astype(np.int64)
        got = torch.cat([rows.clone() for rows in matrix.rows()]).double().numpy()
        assert np.array_equal(got, expected * 2.0**-126)
        assert matrix.squares() == int((expected.astype(object) ** 2).sum()) << 14


@pytest.mark.parametrize("bad", [1e38, -3e38])
def test_numbers_too_large_to_factor_are_an_error(bad: float) -> None:
    update = low_rank_update() | {"w": torch.full((300, 400), bad)}
    with pytest.raises(ValueError, match="too large to factor"):
        LowrankInt4(WIDE, 4).encode(update)


def test_large_and_tiny_numbers_are_sent_or_become_zero() -> None:
    update = low_rank_update()
    for scale in (1e30, 1e-20, 1e-30, 1e-44):
        sent = LowrankInt4(WIDE, 4).encode({"w": update["w"] * scale, "x": update["x"]}).update
        lost = (sent.dense()["w"].double() / scale - update["w"].double()).square().sum()
        assert lost < 0.05 * update["w"].square().sum() or (scale < 1e-33 and not sent.dense()["w"].any())


DIGEST = """
import sys, torch
torch.set_num_threads(int(sys.argv[1]))
torch.set_float32_matmul_precision(sys.argv[2])
from tests.training.codecs.test_lowrank import golden
print(golden())
"""


def golden() -> str:
    """Digest of the numbers of a large matrix of rank 64, decoded on this machine."""
    ramp = np.arange(64 * 700) * 2654435761 % 15 - 7
    p, q = ramp.reshape(64, 700).astype(np.int8), ramp[::-1].reshape(64, 700).astype(np.int8)
    digest = hashlib.sha256()
    for rows in Factors(-20, np.arange(4095, 4031, -1), p, q).rows():
        digest.update((rows + 0.0).numpy().tobytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize(
    ("level", "threads", "precision"), [("default", 1, "medium"), ("avx2", 2, "highest")]
)
def test_numbers_are_the_same_on_every_vector_unit_and_thread_count(
    level: str, threads: int, precision: str
) -> None:
    command = [sys.executable, "-c", DIGEST, str(threads), precision]
    environment = os.environ | {"ATEN_CPU_CAPABILITY": level, "MKL_CBWR": "COMPATIBLE"}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == golden() == "419224d22dd4f5a9"


def test_small_tensors_and_vectors_are_not_factored() -> None:
    assert CODEC.matrices == {"a": (8, 9), "d": (10, 8)}
    no_matrix = LowrankInt4(Spec((("v", (5,)),)), rank=8)
    sent = no_matrix.encode({"v": torch.tensor([1.0, -2.0, 0.0, -0.0, 0.5])})
    assert sent.update.flat().tolist() == [1.0, -2.0, 0.0, 0.0, 0.5]
    only = LowrankInt4(Spec((("w", (8, 8)),)), rank=1)
    assert only.decode(only.encode({"w": torch.ones(8, 8)}).payload).flat().tolist() == pytest.approx(
        [1.0] * 64, rel=1e-3
    )


@pytest.mark.parametrize("rank", [0, 65])
def test_impossible_ranks_are_refused(rank: int) -> None:
    with pytest.raises(ValueError, match="1 <= rank <= 64"):
        LowrankInt4(SPEC, rank)
