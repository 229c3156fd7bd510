"""The network that needs no plug-in."""
