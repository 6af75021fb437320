"""The demo: a whole run on the embedded chain, its adversaries, and how it is shown."""

if __name__ != "earnest.demo":  # one import path: docs/decisions/import-path.md
    raise ImportError("demo is imported as earnest.demo")
