"""ResNet-18 and -50 (He et al. 2015, "Deep Residual Learning for Image Recognition", table 1)."""

from torch import Tensor, nn

from workbench.models.zoo.blocks import zoo_model

IMAGE, BATCH = (1, 3, 224, 224), (2, 3, 64, 64)


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps the size, but for its stride."""
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a residual."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None):
        super().__init__()
        self.conv1 = convolution(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.conv2 = convolution(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 (with the stride, as is usual today) and a 1x1 convolution, and a residual."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None):
        super().__init__()
        self.conv1 = convolution(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = convolution(width, 4 * width, 1)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU()
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


@zoo_model("resnet18", IMAGE, norm_batch=BATCH, block=BasicBlock, depths=(2, 2, 2, 2))
@zoo_model("resnet50", IMAGE, norm_batch=BATCH, block=Bottleneck, depths=(3, 4, 6, 3))
class ResNet(nn.Module):
    """Images ``(n, 3, h, w)`` to ``(n, 1000)`` logits; ``depths`` are the blocks of each stage.

    11 689 512 and 25 557 032 parameters; torchvision's state dicts load.
    """

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], depths: tuple[int, ...]):
        super().__init__()
        self.conv1 = convolution(3, 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs = 64
        for stage, depth in enumerate(depths):
            width = 64 * 2**stage
            outputs, layers = block.expansion * width, []
            for number in range(depth):
                stride = 2 if stage and not number else 1
                downsample = None
                if stride > 1 or inputs != outputs:
                    projection = convolution(inputs, outputs, 1, stride)
                    downsample = nn.Sequential(projection, nn.BatchNorm2d(outputs))
                layers.append(block(inputs, width, stride, downsample))
                inputs = outputs
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(4):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return self.fc(self.avgpool(x).flatten(1))
