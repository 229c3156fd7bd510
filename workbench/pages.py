"""Figures, tables, widgets and texts: what plug-ins that show more import beside ``api``."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub("workbench", __file__)
