"""XNNPACK's graph rewrites, replayed: which operators run for what was exported."""
