"""Training with micro-batches: the parameters after 50 steps are those of whole batches, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bi_inductor
from tests.templates.rows import differences

BATCH, LENGTH, WIDTH, VOCABULARY, STEPS = 8, 6, 16, 23, 50


class Decoder(nn.Module):
    """One layer with tied embeddings; returns the mean loss of predicting the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.projection = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids[:, :-1]) + self.positions
        q, k, v = self.projection(self.norm(x)).unflatten(2, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        logits = F.linear(x + F.gelu(self.out(attended)), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def seeded() -> Decoder:
    torch.manual_seed(0)
    return Decoder()


def batches(steps: int) -> Tensor:
    """Each token is the one before plus a number of the sample, with some noise."""
    generator = torch.Generator().manual_seed(1)
    first, step = (torch.randint(0, VOCABULARY, (steps, BATCH, 1), generator=generator) for _ in range(2))
    return (first + step * torch.arange(LENGTH + 1) + torch.randint(0, 2, (steps, BATCH, LENGTH + 1), generator=generator)) % VOCABULARY


def trained(model: nn.Module, loss: Callable[[Tensor], Tensor], samples: int, steps: int) -> tuple[list[Tensor], list[float]]:
    """The parameters after training with micro-batches of so many samples, and the loss of the last micro-batch of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    accumulator = bi_inductor.GradientAccumulator(model.parameters(), samples)
    curve = []
    for ids in batches(steps):
        for part in ids.split(samples):
            # The mean over the batch from means over its parts; dividing by a power of two is exact.
            value = loss(part) * (samples / BATCH)
            value.backward()
            accumulator.collect()
        accumulator.write()
        optimizer.step()
        optimizer.zero_grad()
        curve.append(float(value.detach()) * BATCH / samples)
    return [parameter.detach().clone() for parameter in model.parameters()], curve


def differing(left: list[Tensor], right: list[Tensor]) -> int:
    return sum(differences(a, b) for a, b in zip(left, right, strict=True))


def test_fifty_steps_have_the_same_parameters() -> None:
    model = seeded()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    loss = torch.compile(model, backend="batch_invariant", dynamic=True, options={"sample_gradients": True})

    def with_option(samples: int, steps: int) -> tuple[list[Tensor], list[float]]:
        model.load_state_dict(start)
        return trained(model, loss, samples, steps)

    whole, curve = with_option(BATCH, STEPS)
    assert sum(curve[-10:]) < 0.8 * sum(curve[:10]), "the model learns"
    assert differing(with_option(1, STEPS)[0], whole) == 0
    after_five, _ = with_option(BATCH, 5)
    for samples in (2, 4):
        assert differing(with_option(samples, 5)[0], after_five) == 0, f"micro-batches of {samples}"


def test_stock_differs() -> None:
    model, other = seeded(), seeded()
    assert differing(trained(model, model, BATCH, 5)[0], trained(other, other, 1, 5)[0]) > 0


def test_bad_calls_say_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="samples: the number of samples in a micro-batch must be a power of two; given 3"):
        bi_inductor.GradientAccumulator([], 3)
    with pytest.raises(RuntimeError, match="no micro-batch was collected"):
        bi_inductor.GradientAccumulator([], 2).write()


def test_a_parameter_that_some_micro_batches_do_not_use() -> None:
    x = torch.randn(5, 3)
    used = [True, False, False, True, False]
    tree = torch.ops.bi_inductor.sample_sum(torch.stack([row if use else torch.zeros(3) for row, use in zip(x, used, strict=True)]))
    parameter = torch.zeros(3, requires_grad=True)
    accumulator = bi_inductor.GradientAccumulator([parameter], 1)
    for row, use in zip(x, used, strict=True):
        parameter.grad = row.clone() if use else None
        accumulator.collect()
    accumulator.write()
    assert parameter.grad is not None and differences(parameter.grad, tree) == 0
