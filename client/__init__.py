"""A node's side of the protocol: chain, storage, run, account, and the two kinds of node."""

if __name__ != "earnest.client":  # one import path: docs/decisions/import-path.md
    raise ImportError("client is imported as earnest.client")
