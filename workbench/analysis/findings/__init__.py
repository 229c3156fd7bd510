"""Optimisation opportunities: rules, each with evidence, expected gain and action."""
