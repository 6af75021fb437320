"""Canonical files are what the safetensors library writes, and only those are read."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load
from safetensors.torch import save

from earnest.training.diloco import tensorfile
from earnest.training.diloco.tensorfile import Entry, PayloadError

TENSORS = {
    Entry("b", "F32", (2, 3)): np.arange(6, dtype=np.float32).reshape(2, 3),
    Entry("a", "F32", (1,)): np.ones(1, np.float32),
    Entry("z", "BF16", (2,)): np.array([0x3F80, 0x4000], np.uint16),
    Entry("c", "U8", (3,)): np.array([1, 2, 3], np.uint8),
    Entry("empty", "U8", (0,)): np.zeros(0, np.uint8),
}
ENTRIES = [*TENSORS]


def test_files_are_byte_for_byte_those_of_the_safetensors_library() -> None:
    tensors = {entry.name: torch.from_numpy(value) for entry, value in TENSORS.items()}
    tensors["z"] = tensors["z"].view(torch.bfloat16)
    assert tensorfile.write(TENSORS) == save(tensors)


def test_safetensors_reads_what_we_write() -> None:
    plain = {entry: value for entry, value in TENSORS.items() if entry.dtype != "BF16"}
    loaded = load(tensorfile.write(plain))
    assert {name: value.tolist() for name, value in loaded.items()} == {
        entry.name: value.tolist() for entry, value in plain.items()
    }


def test_read_returns_what_was_written_whatever_the_order_asked() -> None:
    data = tensorfile.write(TENSORS)
    assert len(data) == tensorfile.file_bytes(ENTRIES)
    for order in (ENTRIES, ENTRIES[::-1]):
        read = tensorfile.read(data, order)
        assert all(np.array_equal(read[entry.name], value) for entry, value in TENSORS.items())


def test_views_cannot_be_written_through() -> None:
    view = tensorfile.read(tensorfile.write(TENSORS), ENTRIES)["b"]
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_entries_of_own_file_describe_it() -> None:
    assert sorted(tensorfile.entries_of(tensorfile.write(TENSORS))) == sorted(ENTRIES)


@pytest.mark.parametrize(
    "field",
    ["1", "{}", '{"dtype":"F64","shape":[1]}', '{"dtype":"F32","shape":[-1]}', '{"dtype":"F32","shape":3}'],
)
def test_entries_of_refuses_claims_it_cannot_describe(field: str) -> None:
    text = f'{{"a":{field}}}'.encode()
    with pytest.raises(PayloadError):
        tensorfile.entries_of(len(text).to_bytes(8, "little") + text)


def test_claims_beyond_the_file_are_refused_not_allocated() -> None:
    huge = [Entry("a", "F32", (1 << 40, 1 << 20))]
    with pytest.raises(PayloadError, match="truncated"):
        tensorfile.read(tensorfile.header(huge), huge)


def test_too_large_a_header_is_refused_when_writing() -> None:
    with pytest.raises(ValueError, match="above the limit"):
        tensorfile.header([Entry(f"tensor{i:06}", "U8", (1,)) for i in range(20_000)])
