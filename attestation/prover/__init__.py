"""Inside a TEE: who makes its quotes, and the key that lives there."""
