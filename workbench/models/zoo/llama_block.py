"""A decoder block of Llama's (Touvron et al. 2023, section 2.2), generating one token.

The size is SmolLM2-135M's (Allal et al. 2025): it exports and runs in seconds.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from workbench.models.zoo.blocks import zoo_model


class RmsNorm(nn.Module):
    """Divide each token by its root mean square."""

    def __init__(self, width: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))


@zoo_model("llama_block", (1, 1, 576), (1, 3, 127, 64), (1, 3, 127, 64))
class LlamaBlock(nn.Module):
    """Grouped-query attention over the cache and one more token, then a gated MLP.

    The cache is an input and an output: the caller keeps it. 3 540 096 parameters; by default, the
    token is the 128th.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        width: int = 576,
        heads: int = 9,
        kv_heads: int = 3,
        hidden: int = 1536,
        cached: int = 127,
    ):
        super().__init__()
        self.head_width = width // heads
        self.kv_heads = kv_heads
        self.input_layernorm = RmsNorm(width)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.post_attention_layernorm = RmsNorm(width)
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)
        rates = 100_000.0 ** -(torch.arange(0, self.head_width, 2) / self.head_width)
        angles = (cached * rates).repeat(2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The new ``x``, ``(1, 1, width)``, of the next token; the cache with its key and value.

        ``keys`` and ``values``, ``(1, kv_heads, cached, width / heads)``, are of those before it.
        """
        normed = self.input_layernorm(x)
        query, key, value = (
            project(normed).reshape(1, 1, -1, self.head_width).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        keys = torch.cat([keys, self.rotate(key)], 2)
        values = torch.cat([values, value], 2)
        # The queries of a group share a key: they are stacked like tokens.
        grouped = self.rotate(query).reshape(1, self.kv_heads, -1, self.head_width)
        attended = scaled_dot_product_attention(grouped, keys, values)
        x = x + self.o_proj(attended.reshape(1, 1, -1))
        normed = self.post_attention_layernorm(x)
        return x + self.down_proj(silu(self.gate_proj(normed)) * self.up_proj(normed)), keys, values

    def rotate(self, x: Tensor) -> Tensor:
        """Rotary position embedding (Su et al. 2021), with the halves of the checkpoints."""
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat([-second, first], -1) * self.sin
