"""Causes of slowness in networks of other libraries, and the same networks with the cause fixed.

Some causes are planted; others are in the network as published. A network whose library is not
installed raises ImportError.
"""

import types

import torch
from torch import nn
from torch.nn import functional


def _input(*shape):
    return (torch.randn(*shape),)


def _timm(name, size=224, **options):
    import timm

    return timm.create_model(name, pretrained=False, **options).eval(), _input(1, 3, size, size)


def _torchvision(name, size=224):
    import torchvision

    return torchvision.models.get_model(name, weights=None).eval(), _input(1, 3, size, size)


def _bert(tokens, attention="sdpa", **options):
    from transformers import BertConfig, BertModel

    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = BertModel(config)

        def forward(self, ids):
            return self.bert(ids)[0]

    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = BertConfig(
        vocab_size=1000,
        attn_implementation=attention,
        **sizes | {"intermediate_size": 1024} | options,
    )
    return Hidden().eval(), (torch.randint(0, 1000, (1, tokens)),)


def _replace(model, chosen, make):
    """Replace the modules of a model that ``chosen`` accepts by ``make(module)``."""
    for name, module in list(model.named_modules()):
        if chosen(module):
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, make(module))
    return model


def _is_relu(module):
    return isinstance(module, nn.ReLU)


class Act(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


# --- an operator that is not delegated -----------------------------------------------------------


def power(fixed):
    """Square roots as powers, which XNNPACK does not take."""
    model, inputs = _timm("mobilenetv4_conv_small")

    def root(x):
        x = functional.relu(x) + 1
        return torch.sqrt(x) if fixed else x**0.5

    return _replace(model, _is_relu, lambda _: Act(root)), inputs


def chunks(fixed):
    """The splits of ShuffleNet; fixed as slices."""
    model, inputs = _torchvision("shufflenet_v2_x1_0")

    def forward(self, x):
        from torchvision.models.shufflenetv2 import channel_shuffle

        half = x.shape[1] // 2
        if self.stride > 1:
            left, right = self.branch1(x), self.branch2(x)
        else:
            left, right = x[:, :half], self.branch2(x[:, half:])
        return channel_shuffle(torch.cat((left, right), 1), 2)

    for module in model.modules():
        if fixed and type(module).__name__ == "InvertedResidual":
            module.forward = types.MethodType(forward, module)
    return model, inputs


def whole_slices(fixed):
    """GhostNet's slices of whole tensors, each of which becomes a copy."""
    model, inputs = _timm("ghostnet_100")

    def forward(self, x):
        x1 = self.primary_conv(x)
        return torch.cat([x1, self.cheap_operation(x1)], dim=1)

    for module in model.modules():
        if fixed and type(module).__name__ == "GhostModule":
            module.forward = types.MethodType(forward, module)
    return model, inputs


def silu_casts(fixed):
    """SiLU in half precision, which PyTorch computes in single precision between two casts."""
    model, inputs = _timm("mobilevit_xxs")
    if fixed:
        _replace(model, lambda m: isinstance(m, nn.SiLU), lambda _: Act(lambda x: x * x.sigmoid()))
    return model, inputs


# --- layouts -------------------------------------------------------------------------------------


def transposes(fixed):
    """Pairs of transposes around the activations of ResNet-18."""
    model, inputs = _torchvision("resnet18")

    def permuted(x):
        return functional.sigmoid(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    return _replace(
        model, _is_relu, lambda _: Act(functional.sigmoid if fixed else permuted)
    ), inputs


def edges(fixed):
    """The stem of a ResNet on a large image, with inputs and outputs in either layout."""
    model, inputs = _torchvision("resnet18", 640)
    stem = nn.Sequential(model.conv1, model.bn1, model.relu)
    layout = torch.channels_last if fixed else torch.contiguous_format
    return stem, (inputs[0].to(memory_format=layout),)


# --- convolutions and products -------------------------------------------------------------------


class Narrow(nn.Module):
    """A dense convolution with as many operations as one in groups, on the first channels."""

    def __init__(self, conv):
        super().__init__()
        self.width = conv.in_channels // conv.groups
        self.conv = nn.Conv2d(
            self.width, conv.out_channels, conv.kernel_size, conv.stride, conv.padding
        )

    def forward(self, x):
        return self.conv(x[:, : self.width])


def groups(fixed):
    """RegNet's grouped convolutions."""
    model, inputs = _timm("regnetx_002")
    if fixed:
        _replace(model, lambda m: isinstance(m, nn.Conv2d) and m.groups > 1, Narrow)
    return model, inputs


class Rows(nn.Module):
    """A depthwise convolution as a sum over parts of its filter, of at most 25 taps each."""

    def __init__(self, conv):
        super().__init__()
        size, channels = conv.kernel_size[0], conv.out_channels
        step = 25 // size
        self.starts = range(0, size, step)
        self.parts = nn.ModuleList()
        for start in self.starts:
            weight = conv.weight.data[:, :, start : start + step]
            part = nn.Conv2d(
                channels, channels, weight.shape[2:], padding=size // 2, groups=channels,
                bias=start == 0,
            )  # fmt: skip
            part.weight.data = weight.clone()
            if start == 0:
                part.bias.data = conv.bias.data
            self.parts.append(part)

    def forward(self, x):
        height = x.shape[2]
        return sum(
            part(x)[:, :, start : start + height]
            for part, start in zip(self.parts, self.starts, strict=True)
        )


def large_filters(fixed):
    """ConvNeXt's depthwise convolutions of 7x7, for which XNNPACK has no depthwise kernel."""
    model, inputs = _timm("convnext_atto")
    if fixed:
        is_large = lambda m: isinstance(m, nn.Conv2d) and m.groups == m.in_channels > 1  # noqa: E731
        _replace(model, is_large, Rows)
    return model, inputs


def weights(fixed):
    """A transformer on one token: it reads every weight once; fixed by one byte per weight."""
    return _bert(1, hidden_size=768, num_attention_heads=12, intermediate_size=3072)


def arithmetic(fixed):
    """Convolutions in single precision; fixed in int8."""
    return _torchvision("resnet18")


def half_weights(fixed):
    """Half precision with weights in single precision; fixed with weights in half precision."""
    return _timm("mobilenetv4_conv_small")


# --- what need not be computed -------------------------------------------------------------------


def norms(fixed):
    """Batch norms before 1x1 convolutions; fixed by folding them into the weights."""
    from timm.layers import ConvNormAct

    model, inputs = _timm("mobilenetv4_conv_small")

    def with_norm(conv):
        norm = nn.BatchNorm2d(conv.in_channels).eval()
        norm.running_var.uniform_(0.5, 1.5)
        if not fixed:
            return nn.Sequential(norm, conv)
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        shift = norm.bias - norm.running_mean * scale
        folded = nn.Conv2d(conv.in_channels, conv.out_channels, 1)
        folded.weight.data = conv.weight.data * scale[None, :, None, None].data
        folded.bias.data = (conv.weight.sum((2, 3)) @ shift).data
        return folded

    for module in model.modules():
        if isinstance(getattr(module, "pw_proj", None), (ConvNormAct, nn.Module)):
            module.pw_proj.conv = with_norm(module.pw_proj.conv)
    return model, inputs


def biases(fixed):
    """LeViT's attention biases, gathered from a table at every inference; fixed as buffers."""
    model, inputs = _timm("levit_128s")
    for module in model.modules():
        if fixed and hasattr(module, "get_attention_biases"):
            table = module.attention_biases[:, module.attention_bias_idxs].detach()
            module.register_buffer("table", table)
            module.get_attention_biases = types.MethodType(lambda self, _: self.table, module)
    return model, inputs


def guards(fixed):
    """Attention of transformers' BERT, with and without the guard of fully masked rows."""
    return _bert(64, "eager" if fixed else "sdpa")


def chains(fixed):
    """Hard swish spelled out in RegNet."""
    model, inputs = _timm("regnetx_002")

    def spelled(x):
        return x * (torch.clamp(x + 3, 0, 6) / 6)

    return _replace(model, _is_relu, lambda _: nn.Hardswish() if fixed else Act(spelled)), inputs


def tiny(fixed):
    """A keyword spotter of ExecuTorch's examples, on two threads and on one."""
    from executorch.examples.models.mlperf_tiny import DSCNNKWSModel

    example = DSCNNKWSModel()
    return example.get_eager_model().eval(), example.get_example_inputs()
