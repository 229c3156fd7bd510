"""Whisper tiny's audio encoder (Radford et al. 2022, "Robust Speech Recognition", figure 1)."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from workbench.models.zoo.blocks import zoo_model


class Attention(nn.Module):
    """Multi-head self-attention whose keys have no bias."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, frames, width = x.shape
        query, key, value = (
            project(x).reshape(n, frames, self.heads, -1).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        attended = scaled_dot_product_attention(query, key, value)
        return self.out(attended.transpose(1, 2).reshape(n, frames, width))


class EncoderBlock(nn.Module):
    """Attention and an MLP, with layer norms and residuals."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attn_ln = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.mlp_ln = nn.LayerNorm(width)
        first, last = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(first, nn.GELU(), last)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_ln(x))
        return x + self.mlp(self.mlp_ln(x))


@zoo_model("whisper_tiny_encoder", (1, 80, 3000))
class WhisperEncoder(nn.Module):
    """Log-Mel spectrograms ``(n, mels, 2 frames)`` to features ``(n, frames, width)``.

    7 632 384 parameters, with the names of OpenAI's checkpoint below ``encoder.``; the default
    input is 30 seconds of audio.
    """

    positional_embedding: Tensor

    def __init__(
        self, mels: int = 80, frames: int = 1500, width: int = 384, heads: int = 6, depth: int = 4
    ):
        super().__init__()
        self.conv1 = nn.Conv1d(mels, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.act = nn.GELU()
        self.register_buffer("positional_embedding", sinusoids(frames, width))
        self.blocks = nn.ModuleList(EncoderBlock(width, heads) for _ in range(depth))
        self.ln_post = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.conv2(self.act(self.conv1(x))))
        x = x.transpose(1, 2) + self.positional_embedding
        for block in self.blocks:
            x = block(x)
        return self.ln_post(x)


def sinusoids(length: int, channels: int) -> Tensor:
    """Sines, then cosines, of wavelengths from 2 pi to 20 000 pi in a geometric progression."""
    rates = torch.exp(-math.log(10_000) / (channels // 2 - 1) * torch.arange(channels // 2))
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)
