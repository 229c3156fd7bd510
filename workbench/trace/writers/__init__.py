"""Frames as files of other formats."""
