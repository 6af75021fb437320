"""The protocol as pure Python: each file names its section of `docs/protocol.md`.

No I/O, no clock, no network, and no randomness except the seeds passed in. The contracts must agree with every function
that both compute, to the last wei.

| section | file |
|---|---|
| 2 money | `vault` |
| 3 a run, its seats | `run`, `seats`, `timeline`, `constants` |
| 4 time | `schedule` |
| 5 updates | `manifest`, `merkle` |
| 6 randomness | `seed`, `assignment` |
| 7 scores | `weights`, `harm`, `report`, `verdicts`, `recipe` |
| 8 consensus, pay | `consensus`, `pay` |
| 9 penalties | `penalties` |
| 10 state | `step` |
| 11 attested runs | `attestation`, `registry` |
| 13 encodings | `hashing`, `merkle`, `manifest`, `report` |
"""

if __name__ != "earnest.protocol":  # one import path: docs/decisions/import-path.md
    raise ImportError("protocol is imported as earnest.protocol")
