"""Networks whose findings have causes of different kinds, for tests of what findings propose."""

import torch
from torch import nn
from torch.nn import functional as fn

IMAGE = (torch.randn(1, 3, 48, 48),)


class Pooled(nn.Module):
    """Average pooling with padding, and reflected padding."""

    example_inputs = IMAGE

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 4, 1)

    def forward(self, x):
        x = fn.pad(torch.relu(self.first(x)), (1, 1, 1, 1), mode="reflect")
        return self.last(fn.avg_pool2d(x, 3, 1, 1))


class Attention(nn.Module):
    """Attention of grouped queries, with a causal mask."""

    example_inputs = (torch.randn(1, 64, 64),)

    def __init__(self):
        super().__init__()
        self.query, self.keys = nn.Linear(64, 64), nn.Linear(64, 32)

    def forward(self, x):
        q = self.query(x).view(1, 64, 8, 8).transpose(1, 2)
        k, v = self.keys(x).view(1, 64, 2, 2, 8).permute(2, 0, 3, 1, 4)
        k, v = k.repeat_interleave(4, 1), v.repeat_interleave(4, 1)
        mask = torch.ones(64, 64, dtype=torch.bool).tril()
        return fn.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Norms(nn.Module):
    """Norms over groups and root mean squares, softplus and reciprocals."""

    example_inputs = (torch.randn(2, 16, 24, 24),)

    def __init__(self):
        super().__init__()
        self.conv, self.groups, self.rms = nn.Conv2d(16, 16, 1), nn.GroupNorm(4, 16), nn.RMSNorm(24)

    def forward(self, x):
        x = self.rms(self.groups(self.conv(x)))
        return x * (1.0 / (fn.softplus(x) + 1.0))


class Doubles(nn.Module):
    """A table in double precision, and cumulative sums."""

    example_inputs = (torch.randn(8, 256),)

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.linspace(0.0, 1.0, 256, dtype=torch.float64))
        self.out = nn.Linear(256, 8)

    def forward(self, x):
        return self.out((x * self.table).float().cumsum(-1))


class Loop(nn.Module):
    """A layer for one sample at a time, and a concatenation that grows."""

    example_inputs = (torch.randn(6, 64),)

    def __init__(self):
        super().__init__()
        self.first, self.next = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        x = whole = torch.cat([torch.relu(self.first(x[n : n + 1])) for n in range(6)])
        for _ in range(4):
            x = torch.tanh(self.next(x))
            whole = torch.cat((whole, x), 1)
        return whole


class Fixed(nn.Module):
    """A table of positions that is resized at every inference."""

    example_inputs = IMAGE

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, 2, 1)
        self.positions = nn.Parameter(torch.randn(1, 16, 7, 7))

    def forward(self, x):
        return self.first(x) + fn.interpolate(self.positions, size=(24, 24), mode="bicubic")


class Filters(nn.Module):
    """Filters of 7x7, groups of four channels, and a norm that no convolution takes."""

    example_inputs = IMAGE

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, 2, 1)
        self.large = nn.Conv2d(32, 32, 7, padding=3, groups=32)
        self.grouped = nn.Conv2d(32, 32, 3, padding=1, groups=8)
        self.norm = nn.BatchNorm2d(32)

    def forward(self, x):
        return self.grouped(torch.relu(self.norm(torch.relu(self.large(self.first(x))))))


class Layouts(nn.Module):
    """Images that become tokens and images again, and a chain of pointwise operators."""

    example_inputs = IMAGE

    def __init__(self):
        super().__init__()
        self.first, self.mix, self.last = (
            nn.Conv2d(3, 32, 3, 2, 1),
            nn.Linear(32, 32),
            nn.Conv2d(32, 8, 1),
        )

    def forward(self, x):
        x = self.first(x).permute(0, 2, 3, 1)
        x = fn.gelu(self.mix(x)).permute(0, 3, 1, 2)
        x = x * 0.5 + 1.0 - x.abs() * 0.25
        return self.last(x)


class Quantised(nn.Module):
    """What int8 leaves in floating point: a transposed convolution in groups."""

    example_inputs = (torch.randn(1, 3, 8, 32),)

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, 2, 1)
        self.up = nn.ConvTranspose2d(16, 16, 2, 2, groups=4)

    def forward(self, x):
        return self.up(self.first(x)).mean(1)


class Recurrent(nn.Module):
    """What int8 leaves in floating point: a recurrence."""

    example_inputs = (torch.randn(1, 2, 16),)

    def __init__(self):
        super().__init__()
        self.first, self.steps = nn.Linear(16, 16), nn.LSTM(16, 16, batch_first=True)

    def forward(self, x):
        return self.steps(self.first(x))[0]


class Unsupported(nn.Module):
    """Sampling, and the largest values and their places, which nothing in the table replaces."""

    example_inputs = (torch.randn(1, 8, 32, 32), torch.rand(1, 32, 32, 2) * 2 - 1)

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x, grid):
        x = fn.grid_sample(self.conv(x), grid, align_corners=False)
        return x.topk(8, -1).values, x.argmax(-1)


class Lookup(nn.Module):
    """One-hot vectors instead of rows of a table, and a convolution after upsampling."""

    example_inputs = (torch.randint(0, 64, (1, 32)), torch.randn(1, 16, 12, 12))

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(64, 48))
        self.conv = nn.Conv2d(16, 16, 1)

    def forward(self, ids, x):
        rows = fn.one_hot(ids, 64).to(self.table.dtype) @ self.table
        return rows, self.conv(fn.interpolate(x, scale_factor=2, mode="bilinear"))


class Joined(nn.Module):
    """Concatenated features, of which the peak of memory is, squeezed and excited."""

    example_inputs = IMAGE

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 32, 3, 1, 1), nn.Conv2d(3, 32, 5, 1, 2)
        self.down, self.up = nn.Linear(64, 16), nn.Linear(16, 64)
        self.last = nn.Conv2d(64, 8, 1)

    def forward(self, x):
        x = torch.cat((self.first(x), self.second(x)), 1)
        factors = torch.sigmoid(self.up(torch.relu(self.down(x.mean((2, 3))))))
        return self.last(x * factors[..., None, None])
