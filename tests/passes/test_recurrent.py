"""LSTM, GRU, RNN and scans as their steps: torch's values and gradients, and bits that do not follow the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan

import bi_inductor  # noqa: F401  # defines torch.ops.bi_inductor
from tests.passes.eager import ours, stock
from tests.templates.rows import assert_same_bits, differences, randn, relative_error

# Input 6, hidden 8, projection 5 where there is one.
MODULES: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "both directions, two layers": (nn.LSTM, {"bidirectional": True, "num_layers": 2, "batch_first": True}),
    "projection, no bias": (nn.LSTM, {"proj_size": 5, "bias": False}),
    "gru": (nn.GRU, {"bidirectional": True, "batch_first": True}),
    "rnn": (nn.RNN, {"nonlinearity": "tanh"}),
}


def module_of(name: str) -> nn.RNNBase:
    kind, arguments = MODULES[name]
    return kind(6, 8, **arguments)


def function_of(module: nn.RNNBase) -> Any:
    """The module as a function of its input, its states and its parameters."""

    def fn(x: Tensor, states: Tensor, *parameters: Tensor) -> Tensor:
        op = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN": torch.rnn_tanh}[type(module).__name__]
        hidden = states[..., : module.proj_size or 8]
        given: Any = (hidden, states) if isinstance(module, nn.LSTM) else hidden
        out, *last = op(x, given, list(parameters), module.bias, module.num_layers, 0.0, False, module.bidirectional, module.batch_first)
        return torch.cat([out.transpose(0, 1).flatten() if not module.batch_first else out.flatten(), *(state.flatten() for state in last)])

    return fn


def operands_of(module: nn.RNNBase, batch: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = randn(3, 4, 6, seed=seed)[:batch]
    states = randn(module.num_layers * (2 if module.bidirectional else 1), 3, 8, seed=seed + 1)[:, :batch]
    return (x if module.batch_first else x.transpose(0, 1)).requires_grad_(), states.requires_grad_()


@pytest.mark.parametrize("name", MODULES)
def test_torchs_values_and_gradients(name: str) -> None:
    module = module_of(name)
    operands = *operands_of(module, 3), *(parameter.detach().requires_grad_() for parameter in module.parameters())
    for given, expected in zip(ours(function_of(module), *operands), stock(function_of(module), *operands), strict=True):
        torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-5)


def test_a_compiled_sequence_has_its_bits_in_every_batch_and_stock_varies() -> None:
    lstm = nn.LSTM(64, 32, bidirectional=True, batch_first=True)
    x = randn(17, 2, 64)
    with torch._dynamo.config.patch(allow_rnn=True), torch.no_grad():
        compiled = torch.compile(lstm, backend="batch_invariant", dynamic=True, fullgraph=True)
        whole, _ = compiled(x)
        for m in (1, 2, 3, 8):
            assert_same_bits(compiled(x[:m])[0], whole[:m], m)
    eager = lstm(x)[0].detach()
    assert any(differences(lstm(x[:m])[0].detach(), eager[:m]) for m in (1, 2, 3, 8)), "torch's products follow the batch"
    exact = lstm.double()(x.double())[0].detach()
    assert relative_error(whole, exact) <= 1.5 * relative_error(eager, exact)


def test_scans_have_their_bits_in_every_batch() -> None:
    """The body of ``scan`` is a graph of its own; ``associative_scan`` becomes slices and pointwise ops."""

    def gated(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return left[0] * right[0], left[1] * right[0] + right[1]

    def step(state: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        state = (state * 0.5) @ weight + x
        return state, state.clone()

    def fn(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        _, states = scan(lambda state, x: step(state, x, weight), torch.zeros_like(x[:, 0]), x, dim=1)
        return states, associative_scan(gated, (x * 0.1, x), 1, combine_mode="generic")[1]

    x, weight = randn(9, 4, 90), randn(90, 90, seed=1) * 0.1
    compiled = torch.compile(fn, backend="batch_invariant", fullgraph=True)
    torch._dynamo.mark_dynamic(x, 0)
    whole = compiled(x, weight)
    state = torch.zeros(9, 90)
    for t in range(4):
        state = torch.ops.bi_inductor.matmul(state * 0.5, weight) + x[:, t]
        assert_same_bits(whole[0][:, t], state, f"the steps one by one, {t}")
    for m in (1, 2, 5):
        for out, expected in zip(compiled(x[:m], weight), whole, strict=True):
            assert_same_bits(out, expected[:m], m)
