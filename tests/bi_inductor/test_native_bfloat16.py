"""Option ``native_bfloat16``: what it changes in a compiled function, what it leaves, and where it is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph
from torch.nn import functional

import bi_inductor
from bi_inductor import OptionError
from bi_inductor.native_bfloat16 import missing, require_native_bfloat16
from bi_inductor.passes import native_bfloat16 as native_products
from bi_inductor.passes.native_bfloat16 import take_native_products
from tests.templates.rows import assert_same_bits, differences, randn

ops = torch.ops.bi_inductor
BF16 = torch.bfloat16
OPTION = {"native_bfloat16": True}

needs_instruction = pytest.mark.skipif(missing() != "", reason=f"no VDPBF16PS here: {missing()}")


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="batch_invariant", dynamic=True, options=options)


def layers(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """A product with an epilogue, and what the product that was rounded leaves of its sum: bits that tell orders apart."""
    product = functional.linear(x, weight)
    return torch.relu(functional.linear(x, weight, bias)), torch.addmm(-product, x, weight.t())


@needs_instruction
def test_a_compiled_function_has_the_bits_of_the_operator_in_every_batch_and_the_option_is_part_of_the_cache_key() -> None:
    x, weight, bias = randn(40, 601, dtype=BF16), randn(37, 601, dtype=BF16, seed=1), randn(37, dtype=BF16, seed=2)

    def expected(matmul: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        return torch.relu(matmul(x, weight.t(), bias)), matmul(x, weight.t(), -matmul(x, weight.t()))

    native, default = expected(ops.native_matmul), expected(ops.matmul)
    assert differences(native[1], default[1]) > 0, "the bits of both orders are the same"
    # The second time each is found in a cache.
    for options, wanted in ((OPTION, native), ({}, default), (OPTION, native), ({}, default)):
        function = compiled(layers, **options)
        for rows in (40, 3, 17):
            for out, reference in zip(function(x[:rows], weight, bias), wanted, strict=True):
                assert_same_bits(out, reference[:rows], (options, rows))
    # A batch of one is a compile of its own.
    for out, reference in zip(compiled(layers, **OPTION)(x[5:6], weight, bias), native, strict=True):
        assert_same_bits(out, reference[5:6], "one row")


@needs_instruction
def test_gradients() -> None:
    x, weight = randn(12, 70, dtype=BF16).requires_grad_(), randn(33, 70, dtype=BF16, seed=1).requires_grad_()
    grad = randn(12, 33, dtype=BF16, seed=2)
    compiled(lambda x, weight: functional.linear(x, weight).float(), **OPTION)(x, weight).backward(grad.float())
    assert x.grad is not None and weight.grad is not None
    assert_same_bits(x.grad, ops.native_matmul(grad, weight.detach()))
    assert_same_bits(weight.grad, ops.native_matmul(grad.t(), x.detach()))


class Mixed(nn.Module):
    """Products of the family, and sums of products that keep their arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8, dtype=BF16)
        self.wide = nn.Linear(8, 8)
        self.convolution = nn.Conv1d(8, 8, 3, padding=1, dtype=BF16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolution(self.linear(x))
        heads = x.unsqueeze(1)
        x = functional.scaled_dot_product_attention(heads, heads, heads).squeeze(1)
        return torch.bmm(x, self.wide(x.float()).to(BF16))


@needs_instruction
def test_explain_names_the_native_kernels() -> None:
    x = torch.randn(4, 8, 8, dtype=BF16)
    with torch.no_grad():
        explanation = bi_inductor.explain(Mixed(), x, options=OPTION)
    (graph,) = explanation.graphs
    kernels = [use.kernel for use in explanation.kernels(graph)]
    assert kernels == ["native_matmul", "convolution", "attention", "matmul", "native_matmul"]
    assert "native_matmul: accumulates in float32, lanes: pairs of products 16" in explanation.text()
    assert "`acc = ` native sum of `a[m,k]*b[k,n]` over `k`, `L = 16`." in explanation.text()


@needs_instruction
@pytest.mark.parametrize("options", [OPTION, {**OPTION, "sample_gradients": True}], ids=["alone", "sample_gradients"])
def test_every_product_of_bfloat16_is_native_where_gradients_are_taken(options: dict[str, Any]) -> None:
    model = Mixed()
    model.convolution = nn.Identity()  # type: ignore[assignment]  # convolutions have a test of their own
    explanation = bi_inductor.explain(model, torch.randn(6, 8, 8, dtype=BF16, requires_grad=True), dynamic=True, options=options)
    for graph in explanation.graphs:
        calls = [use.call for use in explanation.kernels(graph) if "matmul" in use.kernel]
        assert {("native" in call, "-> bfloat16" in call) for call in calls} == {(True, True), (False, False)}, calls


@needs_instruction
@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_is_the_same_in_training(groups: int) -> None:
    """Where a gradient goes through it is a matmul over copied patches, which must not become another one."""
    x, weight = randn(3, 8, 40, dtype=BF16), randn(6, 8 // groups, 9, dtype=BF16, seed=1)
    ours, without = compiled(functional.conv1d, **OPTION), compiled(functional.conv1d)
    with torch.no_grad():
        expected = ours(x, weight, groups=groups)
    gradients = []
    for call in (ours, without):
        leaf = weight.clone().requires_grad_()
        out = call(x, leaf, groups=groups)
        assert_same_bits(out.detach(), expected)
        out.float().sum().backward()
        gradients.append(leaf.grad)
    assert gradients[0] is not None and gradients[1] is not None
    assert_same_bits(gradients[0], gradients[1])


@needs_instruction
def test_the_mark_of_a_convolution_is_what_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernels() -> list[str]:
        torch.compiler.reset()
        x = torch.zeros(3, 8, 40, dtype=BF16, requires_grad=True)
        explanation = bi_inductor.explain(functional.conv1d, x, torch.zeros(6, 8, 9, dtype=BF16), options=OPTION)
        return [use.kernel for use in explanation.kernels(explanation.graphs[0])]

    assert kernels() == ["matmul"]
    monkeypatch.setattr(native_products, "OF_PATCHES", "no such mark")
    assert kernels() == ["native_matmul"]


@needs_instruction
def test_grouped_products() -> None:
    def grouped(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        return torch._grouped_mm(x, weight, ends)

    operands = (torch.zeros(8, 16, dtype=BF16), torch.zeros(2, 16, 16, dtype=BF16), torch.tensor([3, 8], dtype=torch.int32))
    explanation = bi_inductor.explain(grouped, *operands, options=OPTION)
    assert [use.kernel for use in explanation.kernels(explanation.graphs[0])] == ["native_grouped_matmul"]


def refused(**options: Any) -> str:
    with pytest.raises(OptionError) as caught:
        compiled(lambda x: x @ x, **options)(torch.ones(2, 2, dtype=BF16))
    return str(caught.value)


def test_refused_on_a_cpu_without_the_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    message = refused(**OPTION)
    assert "option 'native_bfloat16' needs the CPU's instruction VDPBF16PS, but this CPU has no AVX512-BF16" in message
    assert "allowed are CPUs with AVX512-BF16" in message
    with pytest.raises(OptionError, match="this CPU has no AVX512-BF16"):
        ops.native_matmul(torch.ones(2, 2, dtype=BF16), torch.ones(2, 2, dtype=BF16))
    monkeypatch.setenv("BI_INDUCTOR_NATIVE_BFLOAT16", "1")
    assert "this CPU has no AVX512-BF16" in refused()
    # Without the option such a CPU compiles as every other.
    assert compiled(lambda x: x @ torch.ones(3, 2, dtype=BF16), native_bfloat16=False)(torch.ones(2, 3, dtype=BF16)).sum() == 12


@needs_instruction
def test_refused_where_the_instruction_set_is_another() -> None:
    code = (
        "import torch; x = torch.ones(2, 2, dtype=torch.bfloat16); "
        "torch.compile(lambda x: x @ x, backend='batch_invariant', options={'native_bfloat16': True})(x)"
    )
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "avx2"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert run.returncode != 0 and "but torch runs as on a CPU with AVX2" in run.stderr, run.stderr


def test_refused_off_the_cpu_and_in_triton() -> None:
    with pytest.raises(OptionError, match="but the graph is written for cpu_backend 'triton'"):
        require_native_bfloat16("triton")
    graph = Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    product = graph.call_function(ops.matmul.default, (a, b))
    graph.output(product)
    with FakeTensorMode():
        product.meta["val"] = torch.empty(2, 2, dtype=BF16, device="cuda")
    with pytest.raises(OptionError, match="but a product of bfloat16 is on cuda; allowed are CPUs with AVX512-BF16"):
        take_native_products(graph)
