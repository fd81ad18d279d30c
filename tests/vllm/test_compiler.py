"""Mode 3 as far as a CPU goes: vLLM's own split of a graph at attention, each piece through the compiler that vLLM would call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from bi_inductor.errors import OptionError
from tests.templates.rows import differences, randn

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

from vllm.compilation.backends import split_graph  # noqa: E402  # only where vLLM is there
from vllm.compilation.piecewise_backend import create_concrete_args, get_fake_args_from_graph  # noqa: E402  # as above
from vllm.config.utils import Range  # noqa: E402  # as above

from bi_inductor.integrations.vllm.compiler import InvariantCompiler  # noqa: E402  # as above

WIDTH, ROWS = 96, 40
# What stands for attention: an op that is left to eager, as vLLM leaves its own.
BETWEEN = "aten::sort"


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.up, self.down = torch.nn.RMSNorm(WIDTH), torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.ops.aten.sort.default(torch.nn.functional.silu(self.up(self.norm(x))))[0]
        return torch.softmax(self.down(hidden) + x, -1)


class Pieces:
    """A backend that does what vLLM's does in mode 3: splits, compiles the pieces between for one range, runs all in order."""

    def __init__(self, sizes: Range) -> None:
        self.sizes, self.compiled = sizes, 0

    def __call__(self, gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        whole, parts = split_graph(gm, [BETWEEN])
        for part in parts:
            if not part.is_splitting_graph:
                single = self.sizes.is_single_size()
                inputs = create_concrete_args(part.graph, self.sizes.start) if single else get_fake_args_from_graph(part.graph)
                piece, handle = InvariantCompiler().compile(part.graph, inputs, {"enable_auto_functionalized_v2": False}, self.sizes)
                assert piece is not None and handle is None
                setattr(whole, part.submod_name, Called(piece))
                self.compiled += 1
        run: Callable[..., Any] = whole
        return run


class Called(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


@pytest.fixture(scope="module")
def layer() -> Iterator[Layer]:
    with torch.no_grad():
        yield Layer().eval()


def compiled(layer: Layer, sizes: Range) -> Callable[[torch.Tensor], torch.Tensor]:
    pieces = Pieces(sizes)
    function = torch.compile(layer, backend=pieces, fullgraph=True)
    example = randn(sizes.start if sizes.is_single_size() else ROWS, WIDTH)
    torch._dynamo.mark_dynamic(example, 0)
    with torch.no_grad():
        function(example)
    assert pieces.compiled == 2
    return function


def test_pieces_have_the_same_bits_for_every_size(layer: Layer) -> None:
    function, single = compiled(layer, Range(1, 64)), compiled(layer, Range(8, 8))
    x = randn(ROWS, WIDTH)
    with torch.no_grad():
        expected = function(x)
        for rows in (2, 3, 8, 17, 33):
            assert differences(function(x[:rows]), expected[:rows]) == 0
        assert differences(single(x[:8]), expected[:8]) == 0
        # The control: eager's bits follow the number of rows.
        assert sum(differences(layer(x[:rows]), layer(x)[:rows]) for rows in (2, 3, 8, 17, 33)) > 0


def test_passes_of_vllm_are_refused(layer: Layer) -> None:
    graph = torch.fx.symbolic_trace(torch.nn.ReLU())
    with pytest.raises(OptionError, match="post_grad_custom_post_pass"):
        InvariantCompiler().compile(graph, [randn(2, 2)], {"post_grad_custom_post_pass": object()}, Range(1, 2))


def test_a_setting_that_undoes_a_pin_is_refused() -> None:
    graph = torch.fx.symbolic_trace(torch.nn.ReLU())
    with pytest.raises(OptionError, match="max_autotune"):
        InvariantCompiler().compile(graph, [randn(2, 2)], {"max_autotune": True}, Range(1, 2))


def test_the_hash_is_that_of_our_sources() -> None:
    assert InvariantCompiler().compute_hash(None) == InvariantCompiler().compute_hash(None) != ""
