"""Deployment: plan, run and verify it; the known networks; the embedded chain in `devnet`."""

if __name__ != "earnest.deploy":  # one import path: docs/decisions/import-path.md
    raise ImportError("deploy is imported as earnest.deploy")
