"""Measures each codec: bytes, speed relative to torch.topk and to a dense add, memory.

`python -m benchmarks.codecs [--millions 16 64] [--threads 1] [--repeats 5] [--json FILE]`

Every speed is a ratio of two processor times of one process, on the same tensor and one thread, each the smallest of
`repeats` runs, so the machine's load hardly matters. Encoding uses error feedback. 1.0 is the speed of

- topk: `tensor.view(-1, 4096).topk(64, dim=1)`, alone (1024 of 65,536 for the codec with such chunks);
- add: `total.add_(dense)`, in place; fresh add: `total + dense`, which allocates its result.

Memory is the peak resident size of one encoding less the size before it (update and old residual included), in sizes of
the update: 1.0 is update plus residual, which becomes the new residual. It is read from /proc/self/status (Linux) in a
separate process, because tracemalloc does not count torch's tensors. The last table compares flat, Elias-Fano and Rice
codes of the same indices.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from earnest.protocol.recipe import CodecChoice
from earnest.training.codecs import Codec, make_codec
from earnest.training.codecs.bits import pack, read_unary, rice_width, unary, unpack
from earnest.training.diloco.state import Spec

FEEDBACK = 0.95
CHOICES = {
    "dense-bf16": CodecChoice("dense-bf16", error_feedback=FEEDBACK),
    "int8": CodecChoice("int8", error_feedback=FEEDBACK),
    "topk-2bit k 64": CodecChoice("topk-2bit", k=64, error_feedback=FEEDBACK),
    "topk-2bit k 1024 of 65536": CodecChoice("topk-2bit", k=1024, chunk=65_536, error_feedback=FEEDBACK),
    "topk-2bit k 16-64": CodecChoice("topk-2bit", k=64, k_min=16, energy=0.1, error_feedback=FEEDBACK),
    "lowrank-int4 r 8": CodecChoice("lowrank-int4", rank=8, error_feedback=FEEDBACK),
    "lowrank-int4 r 32": CodecChoice("lowrank-int4", rank=32, error_feedback=FEEDBACK),
    "lowrank-int4 r 4-32": CodecChoice(
        "lowrank-int4", rank=32, rank_min=4, energy=0.5, error_feedback=FEEDBACK
    ),
}


def model(millions: int) -> Spec:
    """Returns layers of a 1024 x 4096 matrix and a vector of 1024, of about `parameters` parameters together."""
    layers = max(1, round(millions * 1e6 / (1024 * 4096)))
    shapes = {f"layer{i:03}.{part}": shape for i in range(layers) for part, shape in PARTS.items()}
    return Spec(tuple(sorted(shapes.items())))


PARTS: Mapping[str, tuple[int, ...]] = {"bias": (1024,), "weight": (1024, 4096)}


def update_of(spec: Spec) -> dict[str, Tensor]:
    """Returns Gaussian numbers; like pseudo-gradients, with rows of unequal norm and 16 strong directions a matrix."""
    generator = torch.Generator().manual_seed(0)
    update = {}
    for name, shape in spec.shapes:
        value = torch.randn(shape, generator=generator)
        if len(shape) == 2:
            left, right = (torch.randn(n, 16, generator=generator) for n in shape)
            value = (value + left @ right.T / 4) * torch.randn(shape[0], 1, generator=generator).exp()
        update[name] = value * 1e-3
    return update


def timed(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Returns the least seconds of each call: processor time, or wall time with several threads."""
    now = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    best = dict.fromkeys(calls, math.inf)
    for _ in range(repeats):
        for name, call in calls.items():
            start = now()
            call()
            best[name] = min(best[name], now() - start)
    return best


def measure(choice: CodecChoice, spec: Spec, repeats: int) -> dict[str, float]:
    codec, update = make_codec(choice, spec), update_of(spec)
    flat, total = spec.join(update), torch.zeros(spec.size)
    memory = codec.encode(update).state
    encoded = codec.encode(update, memory)
    rows = flat[: spec.size // choice.chunk * choice.chunk].view(-1, choice.chunk)
    seconds = timed(
        {
            "topk": lambda: rows.topk(choice.k, dim=1),
            "encode": lambda: codec.encode(update, memory),
            "add": lambda: total.add_(flat),
            "fresh add": lambda: total + flat,
            "apply": lambda: codec.decode(encoded.payload).add_to(total, 0.3),
        },
        repeats,
    )
    lost = (flat - codec.encode(update).update.flat()).square().sum() / flat.square().sum()
    size = len(encoded.payload)
    return {
        "bytes": size,
        "bits_per_parameter": 8 * size / spec.size,
        "times_below_fp32": spec.dense_bytes / size,
        "times_below_bf16": spec.dense_bytes / 2 / size,
        "energy_kept": 1 - lost.item(),
        "encode_to_topk": seconds["topk"] / seconds["encode"],
        "apply_to_add": seconds["add"] / seconds["apply"],
        "apply_to_fresh_add": seconds["fresh add"] / seconds["apply"],
    } | {f"{name.replace(' ', '_')}_s": value for name, value in seconds.items()}


def peak_growth(choice: CodecChoice, spec: Spec) -> float:
    """Returns the growth of this process's peak memory during one encoding, in sizes of the update."""
    codec: Codec = make_codec(choice, spec)
    small = Spec((("w", (256, 256)),))
    make_codec(choice, small).encode(update_of(small))  # libraries are loaded, threads started
    update = update_of(spec)
    residual = {f"residual/{name}": value.clone() for name, value in update.items()}
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = _kilobytes("VmRSS")
    codec.encode(update, residual)
    return (_kilobytes("VmHWM") - before) * 1024 / spec.dense_bytes


def _kilobytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def index_codes(millions: float, k: int, chunk: int, repeats: int) -> dict[str, dict[str, float]]:
    """Returns bits per index, and nanoseconds to read one, for the indices of the largest numbers of random chunks."""
    chunks = max(1, round(millions * 1e6 / chunk))
    generator = torch.Generator().manual_seed(0)
    found = torch.randn(chunks, chunk, generator=generator).topk(k, dim=1).indices.sort(dim=1).values
    places, count = found.numpy().astype(np.int32), chunks * k
    gaps = np.diff(places, axis=1, prepend=-1).reshape(-1).astype(np.int32) - 1
    width, low_width = rice_width(k, chunk), (chunk // k).bit_length() - 1
    flat = pack(places.reshape(-1), (chunk - 1).bit_length())
    rice = (pack(gaps & (1 << width) - 1, width), unary(gaps >> width))
    fano = (pack(places.reshape(-1) & (1 << low_width) - 1, low_width), _fano_heads(places >> low_width))

    def read_rice() -> np.ndarray:
        read = read_unary(rice[1], count) << width | unpack(rice[0], count, width, "lows")
        read = read.reshape(chunks, k)
        read[:, 1:] += 1
        return np.cumsum(read, axis=1, dtype=np.int32)

    def read_fano() -> np.ndarray:
        ones = np.flatnonzero(np.unpackbits(fano[1], bitorder="little").view(bool)).reshape(chunks, k)
        starts = np.arange(chunks)[:, None] * (k + (chunk >> low_width))
        heads = (ones - starts - np.arange(k)).astype(np.int32)
        return heads << low_width | unpack(fano[0], count, low_width, "lows").reshape(chunks, k)

    def read_flat() -> np.ndarray:
        return unpack(flat, count, (chunk - 1).bit_length(), "indices").reshape(chunks, k)

    calls = {"flat": read_flat, "elias-fano": read_fano, "rice": read_rice}
    assert all(np.array_equal(call(), places) for call in calls.values())
    sizes = {"flat": len(flat), "elias-fano": sum(map(len, fano)), "rice": sum(map(len, rice))}
    seconds = timed(calls, repeats)
    return {
        name: {
            "bits_per_index": 8 * sizes[name] / count,
            "read_ns_per_index": 1e9 * seconds[name] / count,
            "largest_k_below_200th": _largest_k(8 * sizes[name] / count, chunk),
        }
        for name in calls
    }


def _fano_heads(heads: np.ndarray) -> np.ndarray:
    """Returns the unary high halves of each chunk, in fields of equal size."""
    chunks, k = heads.shape
    field = k + int(heads.max()) + 1
    bits = np.zeros((chunks, field), np.uint8)
    np.put_along_axis(bits, heads + np.arange(k), 1, axis=1)
    return np.packbits(bits.reshape(-1), bitorder="little")


def _largest_k(bits_per_index: float, chunk: int) -> int:
    """Returns the largest k whose indices, 2-bit codes and two scales stay below 32 / 200 bits per parameter."""
    return math.floor((32 / 200 * chunk - 32) / (bits_per_index + 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--millions", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--peak", metavar="CODEC", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        print(peak_growth(CHOICES[options.peak], model(options.millions[0])))
        return
    tables = {}
    for millions in options.millions:
        spec = model(millions)
        print(f"{spec.size:,} parameters, {options.threads} thread(s), dense fp32 {spec.dense_bytes:,} bytes")
        print(
            f"{'':26}      bytes  bits/p    fp32    bf16  kept  encode/topk  apply/add  apply/fresh  memory"
        )
        tables[spec.size] = {}
        for name, choice in CHOICES.items():
            row = measure(choice, spec, options.repeats) | {"peak": _peak(name, millions, options.threads)}
            tables[spec.size][name] = row
            print(
                f"{name:26}{row['bytes']:>11,}{row['bits_per_parameter']:8.3f}{row['times_below_fp32']:8.1f}"
                f"{row['times_below_bf16']:8.1f}{row['energy_kept']:6.2f}{row['encode_to_topk']:13.2f}"
                f"{row['apply_to_add']:11.2f}{row['apply_to_fresh_add']:13.2f}{row['peak']:8.2f}",
                flush=True,
            )
    indices = {f"{k} of {chunk}": index_codes(4, k, chunk, options.repeats) for k, chunk in INDICES}
    print("\nindices                  bits each  ns to read each  largest k below 1/200 of fp32")
    for which, codes in indices.items():
        for name, row in codes.items():
            print(
                f"{which:14}{name:11}{row['bits_per_index']:9.3f}{row['read_ns_per_index']:17.2f}"
                f"{row['largest_k_below_200th']:16.0f}"
            )
    if options.json:
        document = {"threads": options.threads, "codecs": tables, "indices": indices}
        Path(options.json).write_text(json.dumps(document, indent=1))


INDICES = ((32, 4096), (64, 4096), (128, 4096), (1024, 65_536))


def _peak(name: str, millions: int, threads: int) -> float:
    command = [sys.executable, "-m", "benchmarks.codecs", "--peak", name, "--threads", str(threads)]
    command += ["--millions", str(millions)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    main()
