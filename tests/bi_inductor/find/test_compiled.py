"""`bi_inductor.find` under a compiler: the place is narrowed down by compiling, and the op is told from the kernel it was fused into."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bi_inductor import Variant, find
from tests.bi_inductor.find.test_find import Exact, Layers, Planted
from tests.templates.rows import randn

ALONE = [Variant(), Variant(samples=[0])]


@pytest.mark.parametrize("depth", [0, 5])
def test_a_planted_fault_is_found_by_compiling_parts(depth: int) -> None:
    """aot_eager traces and compiles as Inductor does, and runs without a C++ compiler."""
    result = find(Layers(Planted(), depth, 8), randn(4, 8), backend="aot_eager")
    assert result.node is not None
    assert result.node.op == "planted.by_batch.default"
    assert result.node.module == f"layers.{depth} (Planted)"
    assert "return by_batch(x)" in result.node.line
    assert result.node.max_ulp == 1
    assert result.node.cause == "the op itself: compiled alone, on the same rows, it gives other bits; in eager too"
    assert [row.first for row in result.variants] == ["by_batch", "the outputs", None]
    assert result.table[0].op == "planted.by_batch.default"


def test_several_results_and_branches() -> None:
    """The difference starts in one of two branches; the other one, later in the graph, is the same."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.suspect = Planted()

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            left, right = x.split(4, -1)
            bad = self.suspect(left + 1)
            good = torch.relu(right) * 3
            largest, index = good.max(-1)
            return bad - largest.unsqueeze(-1), index

    result = find(Branches(), randn(4, 8), backend="aot_eager", variants=ALONE)
    assert result.node is not None and result.node.op == "planted.by_batch.default"


def fusing(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend whose kernel for relu and mul together, and only that one, adds a unit in the last place to a batch of one."""
    names = {str(node.target) for node in gm.graph.nodes if node.op == "call_function"}
    fused = any("relu" in name for name in names) and any("mul" in name for name in names)

    def run(*inputs: Any) -> Any:
        outputs = gm(*inputs)
        if fused and any(isinstance(x, torch.Tensor) and x.shape[:1] == (1,) for x in inputs):
            return tuple(torch.nextafter(x, torch.full_like(x, float("inf"))) for x in outputs)
        return outputs

    return run


def test_a_fused_kernel_is_told_from_its_ops() -> None:
    result = find(lambda x: torch.relu(x + 1) * 2 - 1, randn(4, 8), backend=fusing, variants=ALONE)
    assert result.node is not None
    assert result.node.op == "aten.mul.Tensor"
    assert result.node.cause == "the kernel it was fused into: compiled alone, on the same rows, it gives the same bits, in eager too"
    with pytest.raises(ValueError, match="a callable, which a script cannot name"):
        result.write_reproduction("reproduction.py")


def test_two_backends() -> None:
    def rounding(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return lambda *inputs: tuple(x.bfloat16().to(x.dtype) for x in gm(*inputs))

    result = find(nn.Sequential(Exact(), Exact()), randn(4, 8), variants=[Variant(), Variant(backend=rounding)])
    assert result.node is not None and result.node.position == 1
    assert result.variant == "batch of 4, rounding"


def test_stock_inductor(tmp_path: Path) -> None:
    """A layer norm that stock Inductor splits over threads when there is one row (it needs two threads)."""
    model = Layers(nn.LayerNorm(4096), 1, 2)
    # Whether the two orders round alike depends on the numbers and on the CPU; that they do for each of four samples is unlikely.
    variants = [ALONE[0], *(Variant(samples=(sample,)) for sample in range(4))]
    result = find(model, randn(8, 4096), backend="inductor", variants=variants, threads=2)
    assert result.node is not None
    assert result.node.op == "aten.layer_norm.default"
    assert result.node.module == "layers.1 (LayerNorm)"
    assert all("layer_norm" in kernel for kernel in result.node.kernels), result.node.kernels
    assert result.node.cause.startswith("the op itself: compiled alone") and result.node.cause.endswith("not in eager")
    script, _ = result.write_reproduction(tmp_path / "reproduction.py")
    completed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert completed.stdout == f"{result.node.elements_different} of 4096 elements differ\n", completed.stderr
