"""Targets for the command line: functions that return (model, inputs)."""

import torch
from torch import nn


def linear():
    """Varies in eager: 1 row and 4 rows take other kernels of the BLAS."""
    torch.manual_seed(0)
    return nn.Linear(256, 64), torch.randn(4, 256)


def relu():
    return torch.relu, (torch.randn(4, 8),)


def refused():
    return lambda x: torch.igamma(x, x), (torch.randn(4, 8),)


def planted():
    """Samples in a batch of 3 and more have another sign."""
    return lambda x: -x if x.shape[0] >= 3 else x.clone(), torch.randn(4, 8)


def follows_length():
    """A position's result is the number of positions times the input, or `length` times it."""

    def model(x, length=None):
        return x * (length or x.shape[1])

    return model, torch.randn(4, 8, 3)


def as_long_as_the_whole(fn, chunks):
    length = sum(chunk.shape[1] for chunk in chunks)
    return torch.cat([fn(chunk, length) for chunk in chunks], 1)


def one_by_one(fn, chunks):
    return torch.cat([fn(chunk) for chunk in chunks], 1)


def by_name():
    return lambda x, scale: x * scale, {"x": torch.randn(4, 8), "scale": 2.0}


def broken():
    def model(x):
        raise RuntimeError("first line\nsecond line")

    return model, torch.randn(4, 8)


def without_batch():
    return torch.relu, torch.tensor(3.0)


def on_a_gpu():
    raise AssertionError("Torch not compiled with CUDA enabled")


def not_a_pair():
    return 3


number = 3


def breaks_the_graph():
    return lambda x: torch.from_numpy(x.numpy() + 1) * 2, (torch.randn(4, 8),)


def shape_follows_the_data():
    return lambda x: x[x > 0] * 2, (torch.randn(4, 8),)


def branch_follows_the_data():
    return lambda x: x * 2 if x.sum() > 0 else x - 1, (torch.randn(4, 8),)


def writes_to_its_input():
    return lambda x: x.transpose(0, 1).add_(1).transpose(0, 1), (torch.randn(4, 8),)


def moves_to_a_gpu():
    return lambda x: x.to("cuda") * 2, (torch.randn(4, 8),)
