"""`earnest attest`: quotes, policies, keys, and the guardian of a policy."""
