"""Programs that are compiled for described GPUs: functions that return (model, inputs)."""

import torch


def pointwise():
    """Multiplications followed by additions, which a compiler would like to contract."""
    return lambda x, y: (x * y + x, x * 3 - y * y), (torch.randn(8, 96), torch.randn(8, 96))


def largest():
    """A reduction that Inductor writes itself, in bfloat16."""
    return lambda x: x - x.amax(-1, keepdim=True), torch.randn(8, 64).bfloat16()


def _rows(count):
    return lambda x: torch.sigmoid(x) * x, torch.empty(count, 96, device="meta")


def rows_1():
    return _rows(1)


def rows_2():
    return _rows(2)


def rows_16():
    return _rows(16)


def rows_17():
    return _rows(17)


def rows_4096():
    return _rows(4096)


def two_layers():
    """Tied parameters, a buffer, inputs by name."""
    layer = torch.nn.Embedding(16, 32)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = layer, layer
            self.register_buffer("scale", torch.ones(32))

        def forward(self, tokens):
            return (self.first(tokens) - self.second(tokens)) * self.scale

    return Model(), {"tokens": torch.randint(0, 16, (2, 5))}


def unsupported():
    return torch.igamma, (torch.rand(4, 8), torch.rand(4, 8))


def fails():
    def model(x):
        raise RuntimeError("as planned")

    return model, torch.randn(2)
