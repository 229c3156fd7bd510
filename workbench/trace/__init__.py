"""Traces and logs to frames."""
