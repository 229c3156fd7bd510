"""The image encoder of upstream EdgeTAM, with its trained weights.

    git clone https://github.com/facebookresearch/EdgeTAM
    pip install hydra-core iopath timm torchvision torch==2.13.0
    workbench profile data/adapters/edgetam.py:EdgeTam --dtype fp16w

If your clone is elsewhere, change the two paths in a copy of this file; relative paths start at the
working directory. Building the model makes timm download RepViT-M1's weights once; the checkpoint
then replaces them. After a change in the clone, export with ``--measure fresh=yes``.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from workbench.errors import WorkbenchError

CLONE = "EdgeTAM"
CHECKPOINT = "EdgeTAM/checkpoints/edgetam.pt"


class ImageEncoder(nn.Module):
    """Image ``(1, 3, 1024, 1024)`` from 0 to 1 to the features of all levels, finest first."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        # ImageNet's values, used to train SAM 2 and EdgeTAM.
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).reshape(1, 3, 1, 1))

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """The features that the mask decoder and the memory attention use."""
        return tuple(self.model.forward_image((image - self.mean) / self.std)["backbone_fpn"])


class EdgeTam:
    """The part of upstream's model that runs on every frame."""

    def get_eager_model(self) -> nn.Module:
        """The encoder from the clone, with training-time branches merged."""
        for path in (Path(CLONE, "sam2", "build_sam.py"), Path(CHECKPOINT)):
            if not path.is_file():
                raise WorkbenchError(
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
