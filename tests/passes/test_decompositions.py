"""The decomposition table: what stays whole, and the fused ops of torch.nn that are spelled as the ops of its slow path."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from torch import Tensor, nn

import bi_inductor  # noqa: F401  # defines torch.ops.bi_inductor
from bi_inductor.passes.capture import CAPTURED
from bi_inductor.passes.decompositions import KEPT_WHOLE, decomposition_table, native_multi_head_attention, transformer_encoder_layer
from bi_inductor.passes.rewriter import RULES

aten = torch.ops.aten


def test_ops_with_a_rule_or_a_kernel_are_not_taken_apart() -> None:
    table = decomposition_table("test")
    # Inductor takes these apart for booleans, which have no rule.
    booleans = {aten.amax.default, aten.amin.default}
    assert [str(op) for op in [*RULES, *CAPTURED] if op in table and op not in booleans] == []
    for op in KEPT_WHOLE:
        overloads = [op] if isinstance(op, torch._ops.OpOverload) else [getattr(op, name) for name in op.overloads()]
        assert not any(overload in table for overload in overloads)


def test_inductors_table_is_left_as_it_is() -> None:
    from torch._inductor.decomposition import select_decomp_table

    before = dict(select_decomp_table())
    decomposition_table("test")
    assert dict(select_decomp_table()) == before
    assert aten.mm.default in before


def test_the_table_pickles_as_the_hash_of_the_sources() -> None:
    table = decomposition_table("one version")
    assert pickle.dumps(table) == pickle.dumps(decomposition_table("one version"))
    assert pickle.dumps(table) != pickle.dumps(decomposition_table("another version"))
    assert pickle.loads(pickle.dumps(table)).keys() == table.keys()


def masks() -> dict[str, tuple[Tensor | None, int | None]]:
    """A mask and its type, as nn.MultiheadAttention's fast path merges them: true is masked."""
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    padding = torch.arange(5) >= torch.tensor([[5], [3], [1]])
    both = (causal | padding.view(3, 1, 1, 5)).expand(3, 4, 5, 5)
    return {"none": (None, None), "queries and keys": (causal, 0), "padding": (padding, 1), "both": (both, 2)}


@pytest.mark.parametrize("mask", masks())
@pytest.mark.parametrize("need_weights", [True, False])
def test_multi_head_attention_in_eval_mode(mask: str, need_weights: bool) -> None:
    layer = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x = torch.randn(3, 5, 32)
    values, mask_type = masks()[mask]
    weights = [layer.in_proj_weight, layer.in_proj_bias, layer.out_proj.weight, layer.out_proj.bias]
    with torch.no_grad():
        arguments = (x, x, x, 32, 4, *weights, values, need_weights, True, mask_type)
        expected, expected_weights = torch._native_multi_head_attention(*arguments)
        out, out_weights = native_multi_head_attention(*arguments)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    if need_weights:
        torch.testing.assert_close(out_weights, expected_weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("use_gelu", [False, True])
@pytest.mark.parametrize("mask", masks())
def test_transformer_encoder_layer_in_eval_mode(norm_first: bool, use_gelu: bool, mask: str) -> None:
    activation = "gelu" if use_gelu else "relu"
    layer = nn.TransformerEncoderLayer(32, 4, 48, activation=activation, batch_first=True, norm_first=norm_first).eval()
    for parameter in (layer.norm1.weight, layer.norm1.bias, layer.norm2.weight, layer.norm2.bias):
        nn.init.normal_(parameter)
    attention = layer.self_attn
    x = torch.randn(3, 5, 32)
    values, mask_type = masks()[mask]
    with torch.no_grad():
        arguments = (
            *(x, 32, 4, attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight, attention.out_proj.bias),
            *(use_gelu, norm_first, layer.norm1.eps, layer.norm1.weight, layer.norm1.bias, layer.norm2.weight, layer.norm2.bias),
            *(layer.linear1.weight, layer.linear1.bias, layer.linear2.weight, layer.linear2.bias, values, mask_type),
        )
        expected = torch._transformer_encoder_layer_fwd(*arguments)
        out = transformer_encoder_layer(*arguments)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def test_any_and_all_as_in_eager() -> None:
    """No dims reduce nothing, and bytes stay bytes."""

    def function(x: Tensor, count: Tensor) -> list[Tensor]:
        found = [
            op(y, dim=dim, keepdim=keep)
            for op in (torch.any, torch.all)
            for y in (x, count)
            for dim in ((), (1,), 1)
            for keep in (False, True)
        ]
        return [*found, torch.any(count), torch.all(count)]

    x, count = torch.tensor([[0.0, -0.0, math.nan], [1.0, 0.0, 2.0]]), torch.tensor([[0, 1, 2], [1, 1, 1]], dtype=torch.uint8)
    expected = function(x, count)
    for result, value in zip(torch.compile(function, backend="batch_invariant")(x, count), expected, strict=True):
        assert result.dtype == value.dtype
        assert torch.equal(result, value)
    # What these are here for: Inductor's own table reduces every dim, and makes bools of bytes.
    assert torch.compile(lambda x: torch.any(x, dim=()))(x).shape != expected[0].shape
    assert torch.compile(torch.any)(count).dtype != expected[-2].dtype
