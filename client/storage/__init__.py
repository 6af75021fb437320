"""A node's files: content-addressed objects, fetched and served; and the journal that survives a crash."""
