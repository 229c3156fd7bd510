"""Exports and runs: what plug-ins that plan or record them import beside ``api``."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub("workbench", __file__)
