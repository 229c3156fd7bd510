"""Published architectures with random weights, of few layers, and what an expert changes in them.

``remedies`` are those of which the first three findings must name one; with none of them the
network has no known cause, and nothing may be promised falsely. ``hand`` is the edit of an expert,
and ``error`` a word of the error where ExecuTorch does not run the network.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as fn


@dataclass(frozen=True)
class Architecture:
    """How to build a network: ``make()`` is the module and its inputs, as is ``hand()``."""

    make: Callable[[], tuple[nn.Module, tuple[Any, ...]]]
    remedies: tuple[str, ...] = ()
    hand: Callable[[], tuple[nn.Module, tuple[Any, ...]]] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    error: str = ""


class Called(nn.Module):
    """A model of transformers that takes its arguments by name, and gives one result."""

    def __init__(self, model, names, result, **constants):
        super().__init__()
        self.model, self.names, self.result, self.constants = model, names, result, constants

    def forward(self, *inputs):
        out = self.model(**dict(zip(self.names, inputs, strict=True)), **self.constants)
        return getattr(out, self.result)


def configure(kind, attention="eager", of="AutoModel", **sizes):
    """A model of transformers."""
    import transformers

    config = transformers.AutoConfig.for_model(kind, **sizes)
    make = getattr(getattr(transformers, of), "_from_config", None)
    make = make or getattr(transformers, of).from_config
    return make(config, attn_implementation=attention).eval()


def tokens(count, words=1000):
    return torch.randint(0, words, (1, count))


def whisper():
    """The decoder of Whisper, which computes keys and values of the encoder at each token."""
    model = configure(
        "whisper", d_model=256, decoder_layers=4, encoder_layers=1, decoder_attention_heads=4,
        encoder_attention_heads=4, decoder_ffn_dim=1024, encoder_ffn_dim=256, vocab_size=4000,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    ).decoder  # fmt: skip
    names = ("input_ids", "encoder_hidden_states")
    net = Called(model, names, "last_hidden_state", use_cache=False)
    return net.eval(), (tokens(4), torch.randn(1, 1500, 256))


def llama(words=4000):
    model = configure(
        "llama", of="AutoModelForCausalLM", hidden_size=256, intermediate_size=768,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, vocab_size=words,
    )  # fmt: skip
    return Called(model, ("input_ids",), "logits", use_cache=False).eval(), (tokens(64),)


class CachedLayer(nn.Module):
    """A layer of Llama with a cache of keys and values in buffers."""

    def __init__(self, width=512, heads=8, length=512):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 1376 - 1376 % 32, bias=False) for _ in range(2))
        self.down = nn.Linear(1376 - 1376 % 32, width, bias=False)
        shape = (1, heads, length, self.size)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))

    def forward(self, x, place, mask):
        y = self.norms[0](x)
        q, k, v = (
            each(y).view(1, -1, self.heads, self.size).transpose(1, 2)
            for each in (self.q, self.k, self.v)
        )
        self.keys[:, :, place], self.values[:, :, place] = k, v
        y = fn.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(fn.silu(self.gate(y)) * self.up(y))


class CachedDecoder(nn.Module):
    def __init__(self, depth=2, width=512, length=512):
        super().__init__()
        self.words = nn.Embedding(4000, width)
        self.layers = nn.ModuleList(CachedLayer(width, length=length) for _ in range(depth))
        self.head = nn.Linear(width, 4000, bias=False)
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool).tril())

    def forward(self, token, place):
        x, mask = self.words(token), self.mask[place][None, None]
        for layer in self.layers:
            x = layer(x, place, mask)
        return self.head(x)


def cached():
    return CachedDecoder().eval(), (tokens(1), torch.tensor([100]))


def detr():
    import transformers

    backbone = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 1, 1],
        layer_type="basic", out_features=["stage4"],
    )  # fmt: skip
    model = configure(
        "detr", of="AutoModelForObjectDetection", backbone_config=backbone, backbone=None,
        use_timm_backbone=False, use_pretrained_backbone=False, d_model=128, encoder_layers=2,
        decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=256, decoder_ffn_dim=256, num_queries=50,
    )  # fmt: skip
    mask = torch.ones(1, 160, 160, dtype=torch.long)
    net = Called(model, ("pixel_values",), "logits", pixel_mask=mask)
    return net.eval(), (torch.randn(1, 3, 160, 160),)


def speech():
    """SpeechT5 from phonemes to a spectrogram: encoder, and one step of the decoder."""
    model = configure(
        "speecht5", of="SpeechT5ForTextToSpeech", hidden_size=192, encoder_layers=2,
        decoder_layers=2, encoder_attention_heads=3, decoder_attention_heads=3,
        encoder_ffn_dim=512, decoder_ffn_dim=512, vocab_size=81, positional_dropout=0.0,
        speech_decoder_prenet_dropout=0.0, speaker_embedding_dim=0,
    )  # fmt: skip
    net = Called(model, ("input_ids", "decoder_input_values"), "spectrogram", use_cache=False)
    return net.eval(), (tokens(40, 81), torch.randn(1, 16, 80))


def mixtral(length=1):
    model = configure(
        "mixtral", of="AutoModelForCausalLM", hidden_size=256, intermediate_size=512,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=1000,
        num_local_experts=8, num_experts_per_tok=2, experts_implementation="batched_mm",
    )  # fmt: skip
    return Called(model, ("input_ids",), "logits", use_cache=False).eval(), (tokens(length),)


class Experts(nn.Module):
    """A mixture of experts as it is written for export: all are computed, most count nothing."""

    def __init__(self, width=256, hidden=512, count=8, chosen=2, depth=2):
        super().__init__()
        self.chosen = chosen
        self.gates = nn.ModuleList(nn.Linear(width, count, bias=False) for _ in range(depth))
        self.layers = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
                for _ in range(count)
            )
            for _ in range(depth)
        )

    def forward(self, x):
        for gate, experts in zip(self.gates, self.layers, strict=True):
            weights, places = gate(x).softmax(-1).topk(self.chosen, -1)
            scores = torch.zeros_like(gate(x)).scatter(-1, places, weights)
            x = x + sum(scores[:, i : i + 1] * each(x) for i, each in enumerate(experts))
        return x


def experts():
    return Experts().eval(), (torch.randn(1, 256),)


class Recommender(nn.Module):
    """DLRM: tables of categories, their products with each other, and a perceptron."""

    def __init__(self, tables=26, width=32):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(1000, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(pairs + width, 256), nn.ReLU(), nn.Linear(256, 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense, categories):
        x = self.bottom(dense)
        rows = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        rows = torch.stack([x, *rows], 1)
        products = rows @ rows.transpose(1, 2)
        return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], 1)).sigmoid()


def dlrm(batch=1):
    return Recommender().eval(), (torch.randn(batch, 13), torch.randint(0, 1000, (batch, 26)))


class Graph(nn.Module):
    """GraphSAGE: the mean of a node's neighbours, by edges, beside the node."""

    def __init__(self, widths=(64, 128, 128), nodes=500):
        super().__init__()
        pairs = list(itertools.pairwise(widths))
        self.own = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)
        self.others = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairs)
        self.nodes = nodes

    def forward(self, x, edges):
        source, target = edges
        for own, others in zip(self.own, self.others, strict=True):
            zeros = torch.zeros(self.nodes, x.shape[1])
            total = zeros.index_add(0, target, x[source])
            count = torch.zeros(self.nodes, 1).index_add(0, target, torch.ones(len(target), 1))
            x = torch.relu(own(x) + others(total / count.clamp(min=1)))
        return x


def sage():
    return Graph().eval(), (torch.randn(500, 64), torch.randint(0, 500, (2, 3000)))


def of_timm(name, size=160, merged=False, **sizes):
    def make():
        import timm
        from timm.utils.model import reparameterize_model

        torch.manual_seed(0)
        net = timm.create_model(name, pretrained=False, **sizes).eval()
        net = reparameterize_model(net) if merged else net
        return net, (torch.randn(1, 3, size, size),)

    return make


class Step(nn.Module):
    """A residual block of a diffusion U-Net, which adds the embedding of time."""

    def __init__(self, before, after, time=128):
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(8, before), nn.GroupNorm(8, after)])
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.time = nn.Linear(time, after)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x, time):
        y = self.first(fn.silu(self.norms[0](x))) + self.time(fn.silu(time))[:, :, None, None]
        return self.skip(x) + self.second(fn.silu(self.norms[1](y)))


class Attend(nn.Module):
    """Attention over the pixels, as diffusion models write it."""

    def __init__(self, width, heads=4):
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(8, width), heads
        self.qkv, self.out = nn.Conv1d(width, 3 * width, 1), nn.Conv1d(width, width, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x).reshape(b, c, -1)).chunk(3, 1)
        q, k, v = (each.reshape(b * self.heads, c // self.heads, -1) for each in (q, k, v))
        scores = torch.einsum("bct,bcs->bts", q, k) * (c // self.heads) ** -0.5
        y = torch.einsum("bts,bcs->bct", scores.softmax(-1), v).reshape(b, c, -1)
        return x + self.out(y).reshape(b, c, h, w)


class Diffusion(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, 128), nn.SiLU(), nn.Linear(128, 128))
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.down = nn.ModuleList([Step(width, width), Step(width, 2 * width)])
        self.pool = nn.Conv2d(width, width, 3, 2, 1)
        self.middle = nn.ModuleList([Step(2 * width, 2 * width), Attend(2 * width)])
        self.up = Step(3 * width, width)
        self.last = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 4, 3, 1, 1))

    def forward(self, x, t):
        rates = torch.exp(-torch.arange(16) / 16 * 9.2)
        angles = t[:, None] * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        kept = self.down[0](self.first(x), time)
        y = self.down[1](self.pool(kept), time)
        y = self.middle[1](self.middle[0](y, time))
        y = fn.interpolate(y, scale_factor=2.0, mode="nearest")
        return self.last(self.up(torch.cat([y, kept], 1), time))


def diffusion():
    return Diffusion().eval(), (torch.randn(1, 4, 32, 32), torch.tensor([10.0]))


def mamba():
    model = configure(
        "mamba", hidden_size=128, state_size=16, num_hidden_layers=2, vocab_size=1000,
        use_mambapy=False,
    )  # fmt: skip
    return Called(model, ("input_ids",), "last_hidden_state", use_cache=False).eval(), (tokens(32),)


def encoder(kind, length=64, **sizes):
    def make():
        torch.manual_seed(0)
        model = configure(kind, vocab_size=1000, **sizes)
        return Called(model, ("input_ids",), "last_hidden_state").eval(), (tokens(length),)

    return make


def segformer():
    model = configure(
        "segformer", of="AutoModelForSemanticSegmentation", num_labels=20,
        hidden_sizes=[16, 32, 64, 96], decoder_hidden_size=64, depths=[1, 1, 1, 1],
    )  # fmt: skip
    return Called(model, ("pixel_values",), "logits").eval(), (torch.randn(1, 3, 128, 128),)


def wav2vec():
    model = configure(
        "wav2vec2", hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=256, conv_dim=[64] * 7, num_conv_pos_embeddings=32,
        num_conv_pos_embedding_groups=4,
    )  # fmt: skip
    return Called(model, ("input_values",), "last_hidden_state").eval(), (torch.randn(1, 8000),)


def t5():
    model = configure(
        "t5", of="T5EncoderModel", d_model=192, d_kv=48, num_heads=4, d_ff=512, num_layers=3,
        vocab_size=1000,
    )  # fmt: skip
    return Called(model, ("input_ids",), "last_hidden_state").eval(), (tokens(64),)


BERT = {
    "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4,
}  # fmt: skip
ARCHITECTURES = {
    "Whisper decoder": Architecture(whisper, ("split",)),
    "Llama prefill": Architecture(llama, ("head",)),
    "Llama 8da4w with a cache": Architecture(cached, options={"dtype": "8da4w"}),
    "Llama fp32 with a cache": Architecture(cached, ("in_place", "caches")),
    "DETR": Architecture(detr),
    "SpeechT5": Architecture(speech, error="bernoulli"),
    "Mixtral": Architecture(mixtral),
    "mixture of experts": Architecture(experts, ("experts",)),
    "DLRM": Architecture(dlrm, ("lookups",)),
    "DLRM, batch of 64": Architecture(lambda: dlrm(64), ("lookups", "matrices")),
    "GraphSAGE": Architecture(sage, ("matrices",)),
    "RepVGG": Architecture(of_timm("repvgg_a0"), ("branches",), of_timm("repvgg_a0", merged=True)),
    "MobileOne": Architecture(
        of_timm("mobileone_s0"), ("branches",), of_timm("mobileone_s0", merged=True)
    ),
    "FastViT": Architecture(
        of_timm("fastvit_t8"), ("branches",), of_timm("fastvit_t8", merged=True)
    ),
    "EfficientNetV2 int8": Architecture(
        of_timm("efficientnetv2_rw_t", 128), ("float functions",), options={"dtype": "int8"}
    ),
    "MobileNetV3 int8": Architecture(of_timm("mobilenetv3_small_100"), options={"dtype": "int8"}),
    "diffusion U-Net": Architecture(diffusion, ("norms", "matrices")),
    "Mamba": Architecture(mamba, ("products", "convolutions")),
    "DistilBERT": Architecture(
        encoder("distilbert", dim=192, hidden_dim=512, n_layers=3, n_heads=4)
    ),
    "T5 encoder": Architecture(t5),
    "GPT-2": Architecture(
        encoder("gpt2", n_embd=192, n_layer=3, n_head=4, use_cache=False), ("powers",)
    ),
    "SegFormer": Architecture(segformer, ("order",)),
    "wav2vec 2": Architecture(wav2vec),
    "PoolFormer": Architecture(of_timm("poolformer_s12", 128), ("norms",)),
}
