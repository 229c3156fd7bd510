"""Keys of what is cached or identified: one hash, of what it depends on."""

import hashlib
from typing import Any


def make_key(*parts: Any) -> str:
    """The SHA-256 of texts, numbers, records and nested lists or mappings of these.

    Equal parts have one key in all processes; paths count as texts.
    """
    import msgspec  # which a command that asks for nothing does without

    return hashlib.sha256(msgspec.json.encode(parts, order="sorted", enc_hook=str)).hexdigest()
