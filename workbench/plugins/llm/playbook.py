"""The playbook of language models."""

from importlib import resources

TEXT = (resources.files(__package__) / "SKILL.md").read_text()
