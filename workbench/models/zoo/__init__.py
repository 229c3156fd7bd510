"""The registered networks, one per file."""
