"""Token files: mapped, proven by their root, cut into windows that share nothing with what is reported on."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from earnest.protocol.merkle import content_root
from earnest.training.adapters.memmap import TokenFile, Windows

TOKENS = (np.arange(2000) * 7919 % 500).astype("<u2")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "train.bin").write_bytes(TOKENS.tobytes())
    return tmp_path / "train.bin"


def window(windows: Windows, split: str, sample: int) -> list[int]:
    (batch,) = windows.batches(split, [sample], 1)
    return [*batch.inputs[0].tolist(), batch.targets[0, -1].item()]


def test_the_root_is_that_of_the_bytes_and_is_proven(path: Path) -> None:
    root = content_root(TOKENS.tobytes()).hex()
    assert TokenFile(path, "uint16", 500).root() == root
    assert len(TokenFile(path, "uint16", 500, "0x" + root.upper())) == 2000
    path.write_bytes(TOKENS.tobytes()[:-2] + b"\0\0")
    with pytest.raises(ValueError, match="another file"):
        TokenFile(path, "uint16", 500, root)


def test_the_file_is_mapped_read_only(path: Path) -> None:
    tokens = TokenFile(path, "uint16", 500).tokens
    assert isinstance(tokens, np.memmap)
    assert not tokens.flags.writeable


def test_wide_tokens(tmp_path: Path) -> None:
    (tmp_path / "wide.bin").write_bytes(np.array([1, 70_000, 3], "<u4").tobytes())
    assert TokenFile(tmp_path / "wide.bin", "uint32", 70_001).tokens.tolist() == [1, 70_000, 3]


@pytest.mark.parametrize(
    ("content", "reason"), [(b"abc", "not a multiple"), (b"", "not a multiple"), (None, "no token")]
)
def test_files_that_hold_no_tokens(content: bytes | None, reason: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "odd.bin").write_bytes(content)
    with pytest.raises(ValueError, match=reason):
        TokenFile(tmp_path / "odd.bin", "uint16", 500)


def test_other_widths_are_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="uint16 or uint32"):
        TokenFile(path, "int8", 500)


def test_a_token_beyond_the_vocabulary_is_found_when_proven_and_when_read(path: Path) -> None:
    root = TokenFile(path, "uint16", 500).root()
    with pytest.raises(ValueError, match="contains the token 499"):
        TokenFile(path, "uint16", 499, root)
    windows = Windows(TokenFile(path, "uint16", 10), context=8)
    with pytest.raises(ValueError, match="the vocabulary ends at 9"):
        list(windows.batches("train", [0], 1))


def test_windows_equal_the_content_of_the_file(path: Path) -> None:
    windows = Windows(TokenFile(path, "uint16", 500), context=8, warmup=20, report_share=0.1)
    border, count = 1800, (1800 - 1) // 8
    assert (windows.pool_size, windows.warmup_ids) == (count - 20, range(count - 20, count))
    train = [window(windows, "train", i) for i in range(count)]
    places = {tuple(TOKENS[8 * i : 8 * i + 9].tolist()) for i in range(count)}
    assert {tuple(one) for one in train} == places
    assert len(windows.report_ids) == (200 - 1) // 8
    for i in windows.report_ids:
        assert window(windows, "report", i) == TOKENS[border + 8 * i : border + 8 * i + 9].tolist()


def test_consecutive_ids_lie_far_apart(path: Path) -> None:
    windows = Windows(TokenFile(path, "uint16", 500), context=8)
    places = sorted(i * windows._stride % windows.pool_size for i in range(20))
    assert max(b - a for a, b in pairwise(places)) < 3 * windows.pool_size / 20


def test_order_and_batches(path: Path) -> None:
    windows = Windows(TokenFile(path, "uint16", 500), context=8)
    batches = list(windows.batches("train", [5, 3, 9], 2))
    assert [len(b.inputs) for b in batches] == [2, 1]
    assert [*batches[1].inputs[0].tolist(), batches[1].targets[0, -1].item()] == window(windows, "train", 9)


@pytest.mark.parametrize(
    ("split", "sample"), [("train", -1), ("train", 10**6), ("report", 10**6), ("test", 0)]
)
def test_unknown_samples_are_refused(split: str, sample: int, path: Path) -> None:
    with pytest.raises(ValueError, match=r"sample ids of split|no split"):
        list(Windows(TokenFile(path, "uint16", 500), context=8).batches(split, [sample], 1))


def test_a_file_that_is_too_small(path: Path) -> None:
    with pytest.raises(ValueError, match="too few"):
        Windows(TokenFile(path, "uint16", 500), context=1024)


def test_relative_paths_start_at_a_folder_of_the_machine(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EARNEST_TOKENS", str(path.parent))
    assert len(TokenFile("train.bin", "uint16", 500)) == 2000
