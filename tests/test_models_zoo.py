"""The models are the published ones, and stay alive."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from workbench.models.loader import load_model
from workbench.models.registry import BUILTIN, PARAMETERS, describe_models
from workbench.models.zoo.blocks import Attention, initialize, set_norm_statistics
from workbench.models.zoo.edgetam_image_encoder import (
    EdgeTamImageEncoder,
    RepDepthwise,
    RepVit,
    merge_branches,
)
from workbench.models.zoo.efficient_sam_tiny_encoder import ChannelNorm, EfficientSamEncoder
from workbench.models.zoo.llama_block import LlamaBlock
from workbench.models.zoo.mobilenet_v2 import MobileNetV2
from workbench.models.zoo.mobilevit_xs import MobileVitBlock
from workbench.models.zoo.resnet import BasicBlock, ResNet
from workbench.models.zoo.squeezesam import SqueezeSam, click_and_box
from workbench.models.zoo.unet_small import UNet
from workbench.models.zoo.vit_tiny import VisionTransformer
from workbench.models.zoo.whisper_tiny_encoder import WhisperEncoder, sinusoids

# Parameters and the shapes of the outputs; the counts of classifiers are those that the papers'
# code and torchvision's and timm's documentation give.
PUBLISHED = {
    "toy_cnn": (65_930, [(1, 10)]),
    "mobilenet_v3_small": (2_542_856, [(1, 1000)]),
    "llama_block": (3_540_096, [(1, 1, 576), (1, 3, 128, 64), (1, 3, 128, 64)]),
}
HEAVY = {
    "mobilenet_v2": (3_504_872, [(1, 1000)]),
    "resnet18": (11_689_512, [(1, 1000)]),
    "vit_tiny": (5_717_416, [(1, 1000)]),
    "unet_small": (486_562, [(1, 2, 256, 256)]),
    "mobilevit_xs": (2_317_848, [(1, 1000)]),
    "squeezesam": (2_742_942, [(1, 3, 512, 512), (1, 3)]),
    "whisper_tiny_encoder": (7_632_384, [(1, 1500, 384)]),
    "resnet50": (25_557_032, [(1, 1000)]),
    # 197 x 192 of them are the position embedding, which the published count leaves out.
    "efficient_sam": (10_185_380 + 197 * 192, [(1, 1, 3, 1024, 1024), (1, 1, 3)]),
    "efficient_sam_tiny_encoder": (6_163_840, [(1, 256, 64, 64)]),
    "edgetam_image_encoder": (
        4_882_736,
        [(1, 256, 256, 256), (1, 256, 128, 128), (1, 256, 64, 64)],
    ),
}


def outputs_of(module, *inputs):
    with torch.no_grad():
        outputs = module(*inputs)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def check_model(name, parameters, shapes):
    model = load_model(name)
    assert sum(p.numel() for p in model.module.parameters()) == parameters
    outputs = outputs_of(model.module, *model.example_inputs)
    assert [tuple(output.shape) for output in outputs] == shapes
    changed = [x * 0.5 + 0.1 if x.numel() > 100 else x for x in model.example_inputs]
    others = outputs_of(model.module, *changed)
    for output, other in zip(outputs, others, strict=True):
        assert 0.02 < output.std() < 50
        assert (output - other).abs().mean() > 0.01 * output.abs().mean()


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_is_the_published_one_and_alive(name):
    check_model(name, *PUBLISHED[name])


def test_the_listed_parameters_are_the_checked_ones():
    checked = {name: count for name, (count, _) in (PUBLISHED | HEAVY).items()}
    assert checked == PARAMETERS
    assert BUILTIN.keys() == PARAMETERS.keys()
    descriptions = {each["name"]: each["description"] for each in describe_models()}
    assert all(len(descriptions[name]) > 20 for name in BUILTIN)


@pytest.mark.slow
@pytest.mark.parametrize("name", HEAVY)
def test_a_large_model_is_the_published_one_and_alive(name):
    check_model(name, *HEAVY[name])


@pytest.mark.parametrize(
    ("make", "published"),
    [
        (
            lambda: ResNet(BasicBlock, (2, 2, 2, 2)),
            {"layer2.0.downsample.1.running_var": (128,), "fc.weight": (1000, 512)},
        ),
        (
            MobileNetV2,
            {"features.1.conv.1.weight": (16, 32, 1, 1), "classifier.1.bias": (1000,)},
        ),
        (VisionTransformer, {"blocks.11.attn.qkv.bias": (576,), "pos_embed": (1, 197, 192)}),
        (WhisperEncoder, {"blocks.3.mlp.2.weight": (384, 1536), "ln_post.bias": (384,)}),
    ],
)
def test_published_state_dicts_have_these_names(make, published):
    with torch.device("meta"):
        state = make().state_dict()
    assert {key: tuple(state[key].shape) for key in published} == published


def test_loading_is_repeatable():
    first, second = load_model("llama_block"), load_model("llama_block")
    a, b = first.module.state_dict(), second.module.state_dict()
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_norm_statistics_are_those_the_statistics_of_the_data():
    torch.manual_seed(0)
    module = initialize(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    x = torch.randn(4, 3, 16, 16) * 5 + 2
    assert not set_norm_statistics(module, x).training
    with torch.no_grad():
        y = module(x)
    torch.testing.assert_close(y.mean((0, 2, 3)), torch.zeros(8), atol=1e-4, rtol=0)
    torch.testing.assert_close(y.var((0, 2, 3)), torch.ones(8), atol=1e-2, rtol=0)
    assert module[1].momentum == 0.1


# RepViT and EdgeTAM


def test_merged_branches_compute_the_same():
    torch.manual_seed(0)
    small = {"widths": (8, 16, 24, 32), "depths": (2, 3, 4, 2)}
    module = initialize(EdgeTamImageEncoder(**small))
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.3, 0.6)
            nn.init.normal_(layer.bias)
    set_norm_statistics(module, torch.rand(2, 3, 64, 64))
    x = torch.rand(1, 3, 64, 64)
    before = outputs_of(module, x)
    merged = merge_branches(module)
    assert not any(isinstance(layer, RepDepthwise) for layer in merged.modules())
    for ours, theirs in zip(outputs_of(merged, x), before, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_repvit_is_as_large_as_published():
    backbone = sum(p.numel() for p in RepVit().parameters())
    classifier = 384 * 1000 + 1000
    assert backbone + classifier == pytest.approx(5.1e6, rel=0.02)  # RepViT-M1, table 4


def test_every_other_repvit_block_is_gated():
    gates = [
        [not isinstance(block.token_mixer[1], nn.Identity) for block in stage]
        for stage in RepVit().stages
    ]
    assert gates[0] == [True, False, False]
    assert gates[1] == [False, True, False, False]
    assert gates[2] == [False, *[True, False] * 7, False]
    assert gates[3] == [False, True, False]


def test_colours_are_normalised_inside():
    module = EdgeTamImageEncoder((8, 8, 8, 8), (1, 2, 2, 2)).eval()
    seen = []
    module.trunk.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    grey = torch.tensor([0.485, 0.456, 0.406])[None, :, None, None].expand(1, 3, 32, 32)
    outputs_of(module, grey)
    assert seen[0].abs().max() < 1e-6


# Parts


def test_attention_is_the_textbooks():
    torch.manual_seed(0)
    layer, x = Attention(12, 3), torch.randn(2, 5, 12)
    with torch.no_grad():
        q, k, v = layer.qkv(x).chunk(3, -1)
        heads = []
        for head in range(3):
            part = slice(4 * head, 4 * head + 4)
            scores = q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(4)
            heads.append(scores.softmax(-1) @ v[..., part])
        torch.testing.assert_close(layer(x), layer.proj(torch.cat(heads, -1)))


def test_channel_norm_is_a_layer_norm_over_channels():
    x = torch.randn(2, 6, 3, 4)
    expected = nn.functional.layer_norm(x.permute(0, 2, 3, 1), (6,), eps=1e-6).permute(0, 3, 1, 2)
    torch.testing.assert_close(ChannelNorm(6)(x), expected)


def test_mobilevit_attends_among_pixels_of_equal_place():
    torch.manual_seed(0)
    block = initialize(MobileVitBlock(4, 8, 1)).eval()
    block.local, block.project = nn.Conv2d(4, 8, 1), nn.Conv2d(8, 4, 1)
    block.fuse = nn.Identity()
    x = torch.randn(1, 4, 4, 6)
    changed = x.clone()
    changed[0, :, 0, 0] += 1
    with torch.no_grad():
        differs = (block(x) - block(changed))[0, 4:].abs().sum(0) > 1e-6
    places = torch.zeros(4, 6, dtype=torch.bool)
    places[::2, ::2] = True
    assert torch.equal(differs, places)


def test_efficient_sam_takes_any_size():
    module = EfficientSamEncoder(width=12, depth=1, trained=4)
    for size in (64, 96):
        (output,) = outputs_of(module, torch.randn(1, 3, size, size))
        assert output.shape == (1, 256, size // 16, size // 16)


@pytest.mark.slow
def test_squeezesam_looks_at_clicks_and_boxes():
    torch.manual_seed(0)
    module = set_norm_statistics(
        initialize(SqueezeSam(64, (8, 8, 8, 16))), torch.randn(2, 3, 64, 64),
        *(x.expand(2, -1, -1, -1) for x in click_and_box(64)),
    )  # fmt: skip
    image, (points, box) = torch.randn(1, 3, 64, 64), click_and_box(64)
    masks, quality = outputs_of(module, image, points, box)
    assert (masks.shape, quality.shape) == ((1, 3, 64, 64), (1, 3))
    for others in ((points * 0, box), (points, box * 0)):
        assert not torch.allclose(outputs_of(module, image, *others)[0], masks)


def test_unet_keeps_the_size():
    (output,) = outputs_of(UNet(4, 3, levels=3), torch.randn(2, 3, 24, 16))
    assert output.shape == (2, 3, 24, 16)


def test_a_llama_block_continues_what_it_cached():
    """Attention over the cache is attention of the last token in a causal sequence."""
    torch.manual_seed(0)
    width, heads, kv_heads, tokens = 24, 4, 2, 6
    block = initialize(LlamaBlock(width, heads, kv_heads, 32, cached=tokens - 1)).eval()
    x = torch.randn(1, tokens, width)

    def rotated(part, count):
        rates = 100_000.0 ** -(torch.arange(0, 6, 2) / 6)
        turns = torch.polar(torch.ones(count, 3), torch.arange(count)[:, None] * rates)
        pair = torch.complex(*part.chunk(2, -1)) * turns
        return torch.cat([pair.real, pair.imag], -1)

    with torch.no_grad():
        normed = block.input_layernorm(x)
        q, k, v = (
            p(normed).reshape(1, tokens, -1, 6).transpose(1, 2)
            for p in (block.q_proj, block.k_proj, block.v_proj)
        )
        q, k = rotated(q, tokens), rotated(k, tokens)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        y = x + block.o_proj(attended.transpose(1, 2).reshape(1, tokens, width))
        normed = block.post_attention_layernorm(y)
        gated = nn.functional.silu(block.gate_proj(normed)) * block.up_proj(normed)
        expected = (y + block.down_proj(gated))[:, -1:]
    token, keys, values = outputs_of(block, x[:, -1:], k[:, :, :-1], v[:, :, :-1])
    torch.testing.assert_close(token, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(keys, k)
    torch.testing.assert_close(values, v)


def test_whispers_positions_are_sinusoids():
    table = sinusoids(5, 8)
    assert table[0].tolist() == [0] * 4 + [1] * 4
    assert table[3, 0] == pytest.approx(math.sin(3))
    assert table[3, 7] == pytest.approx(math.cos(3e-4))
    (output,) = outputs_of(WhisperEncoder(8, 10, 12, 2, 1), torch.randn(1, 8, 20))
    assert output.shape == (1, 10, 12)
