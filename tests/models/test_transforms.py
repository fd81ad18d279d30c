"""Function transforms inside a compiled function: gradients of single samples, vmap and Jacobians keep their bits in any batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap
from torch.nn import functional as F

from tests.templates.rows import assert_same_bits, differences, randn

CLASSES, WIDTH = 5, 24


def test_transforms_of_samples() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, CLASSES))
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(given: dict[str, Tensor], x: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, given, (x.unsqueeze(0),)), label.unsqueeze(0))

    def attend(x: Tensor) -> Tensor:
        rows = x.view(1, 3, 8)
        return F.scaled_dot_product_attention(rows, rows, rows)

    def transformed(x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {
            **vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, labels),
            "vmap": vmap(lambda row: F.softmax(model(row), -1))(x),
            "attention": vmap(attend)(x),
            "jacobian": vmap(jacrev(lambda row: F.rms_norm(row, [WIDTH]).square().sum()))(x),
        }

    x, labels = randn(9, WIDTH), torch.arange(9) % CLASSES
    compiled = torch.compile(transformed, backend="batch_invariant", dynamic=True)
    expected, eager = compiled(x, labels), transformed(x, labels)
    varying = 0
    for name, value in eager.items():
        torch.testing.assert_close(expected[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    for batch in (1, 2, 5):
        for name, value in compiled(x[:batch], labels[:batch]).items():
            assert_same_bits(value, expected[name][:batch], f"{name} of {batch}")
        varying += sum(differences(value, eager[name][:batch]) for name, value in transformed(x[:batch], labels[:batch]).items())
    # The control: eager mode.
    assert varying
