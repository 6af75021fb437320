"""Deployment of the contracts (plan, run, verify), the known networks, and the embedded chain (`devnet`)."""

if __name__ != "earnest.deploy":  # one import path: docs/decisions/import-path.md
    raise ImportError("deploy is imported as earnest.deploy")
