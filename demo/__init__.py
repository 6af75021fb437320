"""The demo: a whole run on the embedded chain, attacks on it, its result, and how that is shown."""

if __name__ != "earnest.demo":  # one import path: docs/decisions/import-path.md
    raise ImportError("demo is imported as earnest.demo")
