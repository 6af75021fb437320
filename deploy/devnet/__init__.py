"""The embedded chain: eth-tester on py-evm, in the process or served over HTTP."""
