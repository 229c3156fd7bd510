"""A network that is a function."""

from torch import nn


class Net(nn.Module):
    """A function of itself and inputs, with layers and buffers of its own."""

    def __init__(self, function, *layers, **buffers):
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)

    def forward(self, *inputs):
        return self.function(self, *inputs)
