"""The image encoder of upstream EdgeTAM, with its trained weights.

    git clone https://github.com/facebookresearch/EdgeTAM
    pip install hydra-core iopath timm torchvision torch==2.13.0
    workbench profile data/adapters/edgetam.py:EdgeTam --dtype fp16w

Copy this file and change the two paths if your clone is elsewhere; relative ones are seen from
the working directory. Building the model makes timm fetch RepViT-M1's weights once, which the
checkpoint then replaces. After a change inside of the clone, export with ``--fresh``.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from workbench.errors import SetupError

CLONE = "EdgeTAM"
CHECKPOINT = "EdgeTAM/checkpoints/edgetam.pt"


class ImageEncoder(nn.Module):
    """An image ``(1, 3, 1024, 1024)`` from 0 to 1 to the features of all levels, finest first."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        # ImageNet's, which SAM 2 and EdgeTAM were trained with.
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).reshape(1, 3, 1, 1))

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """What the mask decoder and the memory attention are given."""
        return tuple(self.model.forward_image((image - self.mean) / self.std)["backbone_fpn"])


class EdgeTam:
    """Upstream's model, as far as every frame runs it."""

    def get_eager_model(self) -> nn.Module:
        """The encoder of a clone of EdgeTAM, its training-time branches merged."""
        for path in (Path(CLONE, "sam2", "build_sam.py"), Path(CHECKPOINT)):
            if not path.is_file():
                raise SetupError(
                    "no such file",
                    where=path,
                    hint=f"clone EdgeTAM here, or change the paths in a copy of {__file__}",
                )
        sys.path.insert(0, str(Path(CLONE).resolve()))
        try:
            from sam2.build_sam import build_sam2

            model = build_sam2("configs/edgetam.yaml", CHECKPOINT, device="cpu")
        finally:
            sys.path.pop(0)
        from timm.utils import reparameterize_model

        return ImageEncoder(reparameterize_model(model))

    def get_example_inputs(self) -> tuple[Tensor, ...]:
        """One image of noise."""
        return (torch.rand(1, 3, 1024, 1024),)
