"""A kernel that several notebooks run in, one after the other."""

from __future__ import annotations

from typing import Any

from jupyter_client.client import KernelClient
from jupyter_client.manager import KernelManager


class SharedKernel(KernelManager):
    """A kernel whose notebooks do not end it: what they all import is imported once.

    Names that one notebook gave are there in the next; ours give all names that they use.
    """

    _latest: KernelClient | None = None

    def client(self, **options: Any) -> KernelClient:
        """A client for one notebook; the one before it is done with."""
        self.drop_client()
        self._latest = super().client(**options)
        return self._latest

    def drop_client(self) -> None:
        """Close the connections of the latest client, which nobody else does."""
        if self._latest is not None:
            self._latest.stop_channels()
            self._latest = None
