"""Basics without protocol terms: errors, strict JSON, durable files, amounts, addresses, logs."""

import os

if __name__ != "earnest.base":  # one import path: docs/decisions/import-path.md
    raise ImportError("base is imported as earnest.base")

# eth-hash prefers pycryptodome, which takes four times as long for a word.
os.environ.setdefault("ETH_HASH_BACKEND", "pysha3")
