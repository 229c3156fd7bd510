"""Networks of which a part depends only on inputs that stay between calls."""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


def heads(x, count):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, width, count=4):
        super().__init__()
        self.count = count
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, context, mask=None):
        q, k, v = (heads(*pair) for pair in self._project(x, context))
        return self.out(scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))

    def _project(self, x, context):
        return (self.q(x), self.count), (self.k(context), self.count), (self.v(context), self.count)


class Together(Attention):
    """Attention whose keys and values are parts of one projection, which ``take`` takes."""

    def __init__(self, width, take):
        super().__init__(width)
        self.k, self.v, self.both, self.take = None, None, nn.Linear(width, 2 * width), take

    def _project(self, x, context):
        parts = self.take(self.both(context))
        return (self.q(x), self.count), *((part, self.count) for part in parts)


class Decoder(nn.Module):
    """One step of a decoder that computes keys and values of the encoder's states each time."""

    def __init__(self, width=64, layers=2, words=100, make=Attention):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.own = nn.ModuleList(Attention(width) for _ in range(layers))
        self.cross = nn.ModuleList(make(width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, ids, states):
        x = self.words(ids)
        for own, cross, norm in zip(self.own, self.cross, self.norms, strict=True):
            x = x + own(x, x)
            x = x + cross(norm(x), states)
        return self.head(x[:, -1])


class Additive(nn.Module):
    """Attention by a sum of projections, with the weights of a softmax of its own."""

    def __init__(self, width=32):
        super().__init__()
        self.query, self.key, self.score = (
            nn.Linear(width, width),
            nn.Linear(width, width),
            nn.Linear(width, 1),
        )

    def forward(self, hidden, memory):
        weights = self.score((self.query(hidden)[:, None] + self.key(memory)).tanh()).softmax(1)
        return (weights * memory).sum(1)


class Captions(nn.Module):
    """Tokens behind features of an image, which a projector makes as wide as they are."""

    def __init__(self, width=32):
        super().__init__()
        self.projector = nn.Sequential(nn.Linear(48, width), nn.GELU(), nn.Linear(width, width))
        self.words, self.block = nn.Embedding(50, width), Attention(width)

    def forward(self, ids, features):
        x = torch.cat((self.projector(features), self.words(ids)), 1)
        return self.block(x, x)[:, -1]


class Prompted(nn.Module):
    """A decoder of masks: prompts attend to an image, which is attended back."""

    def __init__(self, width=32):
        super().__init__()
        self.point, self.mix = nn.Linear(2, width), nn.Conv2d(width, width, 3, padding=1)
        self.to_image, self.to_prompt = Attention(width), Attention(width)

    def forward(self, points, image, places):
        grid = self.mix(image).flatten(2).transpose(1, 2)
        prompt = self.point(points)
        prompt = prompt + self.to_image(prompt, grid + places)
        grid = grid + self.to_prompt(grid, prompt)
        return grid @ prompt.transpose(1, 2)


class Positions(nn.Module):
    """A table of sines and cosines is made of an input, and added to another one."""

    def __init__(self, width=32):
        super().__init__()
        self.register_buffer("rates", torch.logspace(0, -4, width // 2))
        self.embed, self.block = nn.Linear(8, width), Attention(width)

    def forward(self, x, positions):
        angles = positions[..., None] * self.rates
        x = self.embed(x) + torch.cat((angles.sin(), angles.cos()), -1)
        return self.block(x, x)


class Towers(nn.Module):
    """Two inputs, neither of which stays more than the other."""

    def __init__(self, width=32):
        super().__init__()
        self.left, self.right = (
            nn.TransformerEncoderLayer(width, 4, 64, batch_first=True) for _ in range(2)
        )

    def forward(self, x, y):
        return self.left(x).mean(1) @ self.right(y).mean(1).transpose(0, 1)


class Masked(nn.Module):
    """Tokens attend to each other, twice, where a mask lets them."""

    def __init__(self, width=32):
        super().__init__()
        self.words, self.block = nn.Embedding(50, width), Attention(width)

    def forward(self, ids, mask):
        x = self.words(ids)
        mask = (1 - mask[:, None]) * -1e4
        x = x + (x @ x.transpose(1, 2) + mask).softmax(-1) @ x
        return self.block(x, x, mask)


class Turned(nn.Module):
    """Tokens attend to each other, turned by the angles of their places."""

    def __init__(self, width=32):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x, angles):
        q, k, v = (layer(x) for layer in self.layers)
        q, k = (torch.cat((y[..., :16] * angles, y[..., 16:]), -1) for y in (q, k))
        return x + (q @ k.transpose(1, 2)).softmax(-1) @ v


class Generated(nn.Module):
    """A decoder of one token with its own cache, and the place of the token."""

    def __init__(self, width=32):
        super().__init__()
        self.words, self.block = nn.Embedding(50, width), Attention(width)
        self.register_buffer("cache", torch.zeros(1, 16, width))

    def forward(self, ids, place):
        x = self.words(ids)
        x = x * (place[:, None] * 0.1).cos()
        self.cache.index_copy_(1, place, x)
        return self.block(x, self.cache)


def decoder(**sizes):
    return Decoder(**sizes), (
        torch.randint(0, 100, (1, 4)),
        torch.randn(1, 50, sizes.get("width", 64)),
    )


#: By name: a network with inputs, and those that stay.
STEPS = {
    "decoder": (decoder, ("states",)),
    "additive": (lambda: (Additive(), (torch.randn(1, 32), torch.randn(1, 20, 32))), ("memory",)),
    "captions": (
        lambda: (Captions(), (torch.randint(0, 50, (1, 5)), torch.randn(1, 20, 48))), ("features",),
    ),
    "prompted": (
        lambda: (Prompted(), tuple(map(torch.randn, ((1, 3, 2), (1, 32, 8, 8), (1, 64, 32))))),
        ("image", "places"),
    ),
    "positions": (
        lambda: (Positions(), (torch.randn(1, 20, 8), torch.arange(20.0)[None])), ("positions",),
    ),
    "towers": (lambda: (Towers(), (torch.randn(1, 9, 32), torch.randn(1, 7, 32))), ()),
    "masked": (lambda: (Masked(), (torch.randint(0, 50, (1, 5)), torch.ones(1, 5))), ()),
    "turned": (lambda: (Turned(), (torch.randn(1, 5, 32), torch.randn(5, 16))), ()),
    "generated": (lambda: (Generated(), (torch.tensor([[3]]), torch.tensor([5]))), ()),
}  # fmt: skip
