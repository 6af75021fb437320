"""Contracts against `earnest.protocol` on generated rounds: seats 1 to 256, validators 1 to 16.

    python -m benchmarks.agreement [rounds]

Stops at the first difference; the number printed with it replays that round alone.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from random import Random

from tests.contracts.agreement import agree, build_worlds
from tests.contracts.harness import system


def main(rounds: int) -> None:
    worlds = build_worlds(system())
    seen: Counter[str] = Counter()
    began = time.perf_counter()
    for i in range(rounds):
        try:
            settled = agree(worlds[i % len(worlds)], Random(i))
        except AssertionError:
            print(f"round {i} differs")
            raise
        seen["void"] += settled.void
        seen["seats"] += len(settled.consensus)
        seen["seats judged"] += settled.judged
        seen["seats in doubt"] += len(settled.doubtful)
        seen["penal verdicts"] += sum(verdict in (3, 4, 5, 6) for verdict in settled.verdicts)
        seen["wei paid"] += sum(settled.trainer_pay) + sum(settled.validator_pay)
    took = time.perf_counter() - began
    print(
        f"{rounds:,} rounds agree to the last wei ({took:.0f} s): "
        + ", ".join(f"{n:,} {k}" for k, n in seen.items())
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000)
