"""Plug-in: networks to profile, one per file: image classifiers, segmentation and an encoder."""

from workbench.api import Plugin

_NAMES = ("edgetam_image_encoder", "mobilenet_v3_small", "squeezesam", "unet_small", "vit_tiny")
PLUGIN = Plugin(models={name: f"{__name__}.{name}" for name in _NAMES})
