"""A node's side of the protocol: the chain, storage, training, and the trainer node."""
