"""What plug-ins import, beside the public names of ``workbench``; a name imports its own module."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub("workbench", __file__)
