"""MobileNetV2 (Sandler et al. 2018, "Inverted Residuals and Linear Bottlenecks", table 2)."""

from torch import Tensor, nn

from workbench.models.zoo.blocks import convolution, inverted_residual, zoo_model

# expansion, output channels, repetitions, stride of the first
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


@zoo_model("mobilenet_v2", (1, 3, 224, 224), norm_batch=(2, 3, 64, 64))
class MobileNetV2(nn.Module):
    """Images ``(n, 3, h, w)`` to ``(n, classes)`` logits; 3 504 872 parameters.

    The state dict of torchvision's ``mobilenet_v2`` loads.
    """

    def __init__(self, classes: int = 1000):
        super().__init__()
        inputs = 32
        layers: list[nn.Module] = [convolution(3, inputs, 3, 2, activation=nn.ReLU6)]
        for expansion, outputs, repetitions, stride in STAGES:
            for number in range(repetitions):
                step = 1 if number else stride
                layers.append(inverted_residual("conv", inputs, outputs, step, expansion, nn.ReLU6))
                inputs = outputs
        layers.append(convolution(inputs, 1280, activation=nn.ReLU6))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))
