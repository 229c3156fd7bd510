"""Networks of the sizes that people deploy, with random weights."""

import torch
from torch import nn


class Block(nn.Module):
    """A layer of a transformer: attention and two linear layers, each part with its norm."""

    def __init__(self, width, causal=False):
        super().__init__()
        self.heads, self.causal = width // 64, causal
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, width = x.shape[1:]
        heads = self.qkv(self.norms[0](x)).reshape(1, rows, 3, self.heads, 64)
        attend = nn.functional.scaled_dot_product_attention
        attended = attend(*heads.permute(2, 0, 3, 1, 4), is_causal=self.causal)
        x = x + self.out(attended.transpose(1, 2).reshape(1, rows, width))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class Bottleneck(nn.Module):
    """Three convolutions of a ResNet, and what goes past them."""

    def __init__(self, wide, narrow, stride):
        super().__init__()
        sizes = [(wide, narrow, 1, 1), (narrow, narrow, 3, stride), (narrow, 4 * narrow, 1, 1)]
        parts = [
            (nn.Conv2d(a, b, size, step, size // 2, bias=False), nn.BatchNorm2d(b), nn.ReLU())
            for a, b, size, step in sizes
        ]
        self.body = nn.Sequential(*[layer for part in parts for layer in part][:-1])
        change = wide != 4 * narrow or stride > 1
        self.skip = nn.Conv2d(wide, 4 * narrow, 1, stride) if change else nn.Identity()

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


class ConvnextBlock(nn.Module):
    """A depthwise convolution, a norm over channels, and two linear layers."""

    def __init__(self, width):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + self.down(nn.functional.gelu(self.up(y))).permute(0, 3, 1, 2)


class Picture(nn.Module):
    """A network that takes an image of 224 x 224."""

    def get_example_inputs(self):
        return (torch.randn(1, 3, 224, 224),)


class Vision(Picture):
    """As ViT-B/16: 86 M weights."""

    def __init__(self, width=768, depth=12):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Linear(width, 1000)

    def forward(self, x):
        return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


class Residual(Picture):
    """As ResNet-50: 26 M weights."""

    def __init__(self):
        super().__init__()
        layers, wide = [nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
        for narrow, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
            for place in range(depth):
                layers.append(Bottleneck(wide, narrow, 2 if place == 0 and narrow > 64 else 1))
                wide = 4 * narrow
        self.body, self.head = nn.Sequential(*layers), nn.Linear(wide, 1000)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Convnext(Picture):
    """As ConvNeXt-B: 89 M weights."""

    def __init__(self):
        super().__init__()
        layers, before = [nn.Conv2d(3, 128, 4, 4)], 128
        for width, depth in ((128, 3), (256, 3), (512, 27), (1024, 3)):
            if width > before:
                layers.append(nn.Conv2d(before, width, 2, 2))
            layers += [ConvnextBlock(width) for _ in range(depth)]
            before = width
        self.body, self.head = nn.Sequential(*layers), nn.Linear(before, 1000)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Encoder(nn.Module):
    """As BERT of 24 layers: 128 tokens, 334 M weights."""

    def __init__(self, width=1024, depth=24):
        super().__init__()
        self.words, self.places = nn.Embedding(30522, width), nn.Embedding(128, width)
        self.register_buffer("order", torch.arange(128))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.norm, self.pooled = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, tokens):
        x = self.norm(self.blocks(self.words(tokens) + self.places(self.order)))
        return torch.tanh(self.pooled(x[:, 0]))

    def get_example_inputs(self):
        return (torch.randint(0, 30522, (1, 128)),)


class Decoder(nn.Module):
    """As GPT-2, a language model of 12 layers: 64 tokens, 124 M weights, the last one's logits."""

    def __init__(self, width=768, depth=12):
        super().__init__()
        self.words, self.places = nn.Embedding(50257, width), nn.Embedding(64, width)
        self.register_buffer("order", torch.arange(64))
        self.blocks = nn.Sequential(*(Block(width, causal=True) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 50257, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.blocks(self.words(tokens) + self.places(self.order))
        return self.head(self.norm(x)[:, -1])

    def get_example_inputs(self):
        return (torch.randint(0, 50257, (1, 64)),)


class Chain(nn.Module):
    """Two hundred tiny layers."""

    def __init__(self):
        super().__init__()
        layers = [layer for _ in range(200) for layer in (nn.Conv2d(4, 4, 1), nn.ReLU())]
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)

    def get_example_inputs(self):
        return (torch.randn(1, 4, 4, 4),)
