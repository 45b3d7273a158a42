"""Who sends what to whom: the versioned root, and full-weight checkpoints over it."""
