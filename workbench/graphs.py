"""Graphs of programs: what plug-ins that rewrite or run them import beside ``api``."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub("workbench", __file__)
