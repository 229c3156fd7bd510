"""Many models: matrices, their state, their pages."""
