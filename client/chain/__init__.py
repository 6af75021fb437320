"""The chain as nodes use it; the only importer of web3."""
