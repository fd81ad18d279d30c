"""`bi_inductor.find`: names the right node, says why, follows the difference, and says clearly what it cannot run."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from expecttest import assert_expected_inline
from torch import nn

import bi_inductor
from bi_inductor import CaptureError, Variant, find
from tests.bi_inductor import planted
from tests.bi_inductor.planted import by_batch
from tests.templates.rows import randn


class Exact(nn.Module):
    """A layer whose bits cannot follow the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) - 0.5 * x


class Planted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return by_batch(x)


class Layers(nn.Module):
    """`count` exact layers, with `layer` in place of the one at `depth`."""

    def __init__(self, layer: nn.Module, depth: int, count: int = 10) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer if index == depth else Exact() for index in range(count))

    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, *rest) if not isinstance(layer, Exact) else layer(x)
        return x


class Hunt(nn.Module):
    """A planted difference that one branch amplifies and another hides."""

    def __init__(self) -> None:
        super().__init__()
        self.suspect = Planted()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.suspect(torch.relu(x))
        amplified = y - y.detach().round()
        hidden = y.argmax(-1)
        return amplified * 2, hidden + 1


def in_this_file(text: str) -> str:
    """A report without the folder of this file and the numbers of its lines."""
    return re.sub(r'"[^"]*/(\w+\.py)", line \d+', r'"\1", line N', text)


def test_the_report() -> None:
    x = torch.tensor([[1.25, -1.0, 0.5], [2.25, 1.0, 0.25], [0.75, 3.0, -0.5]])
    result = find(Hunt(), x)
    assert not result
    assert not result.invariant
    assert str(result) == result.text()
    assert_expected_inline(
        in_this_file(result.text()),
        """\
eager: not batch-invariant, first at by_batch (node 2 of 8)
  op      planted.by_batch.default
  line    "test_find.py", line N, in forward: return by_batch(x)
  module  suspect (Planted)
  relu    float32[3, 3] strides (3, 1) | float32[1, 3] strides (3, 1)
  result  float32[3, 3] strides (3, 1) | float32[1, 3] strides (3, 1)
  bits    1 of 3 elements differ, in 1 of 1 shared rows, by up to 1 ulp
  first   at [0, 0]: 1.25 | 1.2500001192092896
  cause   the op itself: on the same rows it gives other bits

compared with the batch of 3:
  sample 0 alone  differs from by_batch on, at 3 values
  sample 2 alone  differs from by_batch on, at 3 values
  samples 2 to 1  same bits

along the graph (sample 0 alone):
  node      op                        module   max ulp      effect
  by_batch  planted.by_batch.default  suspect        1  #   differs by itself
  round_1   aten.round.default        Hunt        same      hides
  sub       aten.sub.Tensor           Hunt           4  ##  amplifies
  argmax    aten.argmax.default       Hunt        same      hides
  mul       aten.mul.Tensor           Hunt           4  ##  passes on, output""",
    )


def test_no_difference() -> None:
    result = find(Layers(Exact(), 0, 2), randn(4, 3))
    assert result
    assert_expected_inline(
        result.text(),
        """\
eager: batch-invariant, the same bits at all 6 compared values of 6 nodes

compared with the batch of 4:
  sample 0 alone  same bits
  sample 3 alone  same bits
  samples 3 to 2  same bits""",
    )
    with pytest.raises(ValueError, match="no bits part"):
        result.write_reproduction("reproduction.py")


def test_json_holds_what_the_text_says() -> None:
    result = find(Hunt(), randn(3, 4))
    found = json.loads(result.json())
    assert found["invariant"] is False
    assert found["node"]["op"] == "planted.by_batch.default"
    assert found["node"]["max_ulp"] == 1
    assert [row["name"] for row in found["variants"]] == ["sample 0 alone", "sample 2 alone", "samples 2 to 1"]
    assert found["table"][0]["effect"] == "differs by itself"
    assert "reproduce" not in found
    first, last = ["name", "position", "nodes", "op", "module", "line"], ["elements_different", "max_ulp", "place", "values"]
    assert list(found["node"])[:6] == first and list(found["node"])[-4:] == last


def test_a_planted_fault_among_two_thousand_nodes() -> None:
    depth = 617
    result = find(Layers(Planted(), depth, 670), randn(4, 8))
    assert result.nodes > 2000
    assert result.node is not None
    assert result.node.op == "planted.by_batch.default"
    assert result.node.module == f"layers.{depth} (Planted)"
    assert "return by_batch(x)" in result.node.line
    assert result.variant in ("sample 0 alone", "sample 3 alone")


def test_the_line_is_the_innermost_of_the_users() -> None:
    def helper(x: torch.Tensor) -> torch.Tensor:
        return by_batch(x)  # the line

    class Calls(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return helper(x) + 1

    node = find(Calls(), randn(3, 4)).node
    assert node is not None and node.line.endswith("in helper: return by_batch(x)  # the line")


def test_rows_are_followed_through_merged_dims() -> None:
    """[batch, length] merged into one dim, in either order, and back."""

    def batch_first(x: torch.Tensor) -> torch.Tensor:
        return (torch.relu(x.reshape(-1, 8)) * 2).view(-1, 5, 8).sum(-1)

    def length_first(x: torch.Tensor) -> torch.Tensor:
        return (torch.relu(x.transpose(0, 1).reshape(-1, 8)) * 2).view(5, -1, 8).transpose(0, 1).flip(-1)

    for fn in (batch_first, length_first):
        result = find(fn, randn(4, 5, 8))
        assert result, result.text()
        # relu, mul, and the last op: every value that is not a view.
        assert result.compared >= 3 and result.notes == ()

    def faulty(x: torch.Tensor) -> torch.Tensor:
        merged = torch.relu(x.transpose(0, 1).reshape(-1, 8))
        bad = by_batch(merged.view(5, -1, 8).transpose(0, 1).contiguous())
        return bad.transpose(0, 1).reshape(-1, 8) * 2

    result = find(faulty, randn(4, 5, 8))
    assert result.node is not None and result.node.op == "planted.by_batch.default"
    assert [row.op for row in result.table] == ["planted.by_batch.default", "aten.reshape.default", "aten.mul.Tensor"]


def test_values_that_follow_sizes_are_no_results_of_samples() -> None:
    """arange(batch) is another number for another place, and no fault."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[0])
        return x[places] + 1

    assert find(fn, randn(4, 3))


def test_an_op_that_mixes_samples_is_named_as_one() -> None:
    node = find(lambda x: x / x.abs().amax(0), randn(4, 3)).node
    assert node is not None
    assert node.op == "aten.amax.default"
    assert "mixes samples" in node.cause


def test_numbers_of_rows_that_lead_out_of_a_smaller_batch() -> None:
    """A mixture of experts sorts the tokens of all samples; the rows of the order are no operands of another batch."""

    def sorts(x: torch.Tensor) -> torch.Tensor:
        order = x.sum(-1).argsort()
        return x[order] * 2

    x = torch.tensor([[3.0], [2.0], [1.0], [0.0]])
    result = find(sorts, x)
    assert result.node is not None and result.node.op == "aten.argsort.default", result.text()
    assert "mixes samples by its meaning: it works along the dim that holds them" in result.node.cause


def test_a_random_op_is_not_blamed_on_the_batch() -> None:
    node = find(nn.Sequential(Exact(), nn.Dropout()), randn(4, 8)).node
    assert node is not None and "random" in node.cause


def test_a_difference_that_does_not_come_again_is_not_blamed_on_the_batch() -> None:
    planted.calls.clear()
    result = find(planted.once, randn(4, 8))
    assert result.node is not None and result.node.op == "planted.once.default"
    assert "not deterministic" in result.node.cause


def test_random_state_and_threads_are_left_as_found() -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    find(nn.Dropout(), randn(4, 8), variants=[Variant(), Variant(threads=threads + 1)])
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == threads


def test_variants() -> None:
    variants = [
        Variant(),
        Variant(samples=[2, 0]),
        Variant(neighbours=float("nan")),
        Variant(threads=1),
        Variant(samples=[1], name="the second"),
        Variant(backend="aot_eager"),
    ]
    result = find(Layers(Planted(), 1, 3), randn(4, 8), variants=variants)
    assert [(row.name, row.first is not None) for row in result.variants] == [
        ("samples 2, 0", False),
        ("batch of 4, neighbours nan", False),
        ("batch of 4, 1 thread", False),
        ("the second", True),
        ("batch of 4, aot_eager", False),
    ]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_progress_is_told(backend: str) -> None:
    told: list[tuple[str, int, int | None]] = []
    find(Layers(Planted(), 1, 3), randn(4, 8), backend=backend, progress=lambda *step: told.append(step))
    if backend == "eager":
        steps = ["batch of 4", "sample 0 alone", "sample 3 alone", "samples 3 to 2", "measure"]
        assert told == [("capture", 0, None), *((step, done, 5) for done, step in enumerate(steps))]
    else:
        assert told[1] == ("compile the whole graph", 0, None) and ("compile up to by_batch", 0, None) in told
        assert [done for _, done, _ in told[2:]] == sorted(done for _, done, _ in told[2:]) and len(told) > 4


def test_padding() -> None:
    """A sum over the length is the same sum with zeros beside it; a mean is not."""

    def masked(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).amax(1)

    padded = [Variant(), Variant(pad_left=3), Variant(pad_right=2), Variant(samples=[1], pad_left=1, pad_right=1)]
    assert find(masked, randn(4, 5, 8), variants=padded, sequence_dim=1)
    result = find(lambda x: torch.relu(x).mean(1), randn(4, 5, 8), variants=padded, sequence_dim=1)
    assert result.node is not None and result.node.op == "aten.mean.dim"
    # The compared positions are the samples' own.
    assert not find(lambda x: x.flip(1) + 0, randn(4, 5, 8), variants=padded[:2], sequence_dim=1)


def test_positions_that_move_with_the_padding() -> None:
    table = randn(16, 8)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + table[torch.arange(x.shape[1])]

    variants = [Variant(), Variant(pad_left=3)]
    node = find(fn, randn(4, 5, 8), variants=variants, sequence_dim=1).node
    assert node is not None and node.op == "aten.add.Tensor"
    assert "positions" in node.cause
    assert find(fn, randn(4, 5, 8), variants=[Variant(), Variant(pad_right=3)], sequence_dim=1)


def test_inputs_by_name_and_a_saved_program(tmp_path: Path) -> None:
    def fn(x: torch.Tensor, *, shift: torch.Tensor, scale: float) -> torch.Tensor:
        return by_batch(x) * scale + shift

    inputs = {"x": randn(4, 3), "shift": randn(3), "scale": 2.0}
    result = find(fn, inputs, batch_dim={"shift": None})
    assert result.node is not None and result.node.op == "planted.by_batch.default"

    program = torch.export.export(Hunt(), (randn(4, 3),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, tmp_path / "model.pt2")
    saved = find(torch.export.load(tmp_path / "model.pt2"), randn(5, 3))
    assert saved.node is not None and saved.node.op == "planted.by_batch.default"


class WritesToInput(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).add_(1)


class WritesToState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x + self.calls


def branches(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def leaves_torch(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() + 1)


def fixed_size(x: torch.Tensor) -> torch.Tensor:
    return x.view(4, 3)


def asks_for_the_length(x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x)
    return y * 2 if len(y) == 1 else y + y


def loops_over_samples(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([sample * 2 for sample in x])


def fails(x: torch.Tensor) -> torch.Tensor:
    return x @ torch.ones(5, 5)


@dataclasses.dataclass
class Output:
    hidden: torch.Tensor


def returns_an_object(x: torch.Tensor) -> Output:
    return Output(x + 1)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (branches, r"a branch or a shape depends on values at .*branches|x\.sum\(\)"),
        (leaves_torch, r"cannot be captured as one graph .*x\.numpy\(\)"),
        (fixed_size, r"fixes the batch size to 4 .*in fixed_size: return x\.view\(4, 3\) makes a number of it .*write x\.shape\[0\]"),
        (asks_for_the_length, r"fixes the batch size to 4 .*len\(y\) == 1 else y \+ y makes a number of it \(as len\(\) of a tensor"),
        (loops_over_samples, r"fixes the batch size to 4 .*for sample in x\]\) makes a number of it .*ops on the whole batch"),
        (fails, r"the model raises RuntimeError for these inputs at .*x @ torch\.ones\(5, 5\): mat1 and mat2 .*call it once by itself"),
        (returns_an_object, r"returns an object of type Output, .*return a tuple or a dict, or call torch\.export\.register_dataclass"),
        (WritesToInput(), r"aten\.add_\.Tensor writes to an input \(x\) in place at .*clone"),
        (WritesToState(), r"writes to a parameter or buffer \(b_calls\)"),
        (nn.BatchNorm1d(3), "eval mode"),
    ],
)
def test_what_cannot_be_captured_is_one_sentence(model: Callable[..., Any], message: str) -> None:
    with pytest.raises(CaptureError, match=message) as raised:
        find(model, randn(4, 3))
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_cuda_model_on_a_machine_without() -> None:
    with pytest.raises(CaptureError, match=r"uses a CUDA device at .*x\.to.*move it to the CPU"):
        find(lambda x: x.to("cuda") + 1, randn(4, 3))


def test_bad_arguments() -> None:
    x = randn(4, 3)
    for arguments, message in (
        ({"batch_dim": None}, "no tensor with a batch dim"),
        ({"backend": "nonsense"}, "backend: got 'nonsense'"),
        ({"variants": [Variant()]}, "two or more"),
        ({"variants": [Variant(), Variant(samples=[4])]}, r"variants\[1\].samples: got \[4\]; allowed are numbers from 0 to 3"),
        ({"variants": [Variant(samples=[0]), Variant(samples=[1])]}, "compares no sample"),
        ({"variants": [Variant(), Variant(pad_left=1)]}, "needs sequence_dim"),
        ({"variants": [Variant(), Variant(threads=0)]}, "threads: got 0"),
        ({"sequence_dim": 0}, "the same dim"),
        ({"sequence_dim": 1, "padding_values": {"y": 1}}, "padding_values names"),
    ):
        with pytest.raises(ValueError, match=message):
            find(Exact(), x, **arguments)
    with pytest.raises(ValueError, match="at least 2"):
        find(Exact(), x[:1])
    with pytest.raises(ValueError, match=r"inputs hold 0 sample\(s\)"):
        find(Exact(), x[:0])
    with pytest.raises(TypeError, match="model: got int; allowed are a module, a function"):
        find(3, x)


def test_odd_inputs_and_outputs() -> None:
    """Named arguments, numbers, None, dicts in lists, views with strides, no elements: every tensor is compared, nothing else matters."""

    class Odd(nn.Module):
        def forward(self, x: torch.Tensor, *, rows: torch.Tensor, scale: float, mask: None = None, **more: Any) -> dict[str, Any]:
            return {"a": [by_batch(x) * scale, (more["left"][0] + rows,)], "none": mask, "number": 3, "empty": x[:, :0]}

    inputs = {
        "x": randn(8, 4).t(),
        "rows": torch.randint(9, (4, 8))[:, ::2],
        "scale": 2.0,
        "mask": None,
        "left": [randn(1, 4).expand(4, 4)],
    }
    result = find(Odd(), inputs)
    assert result.node is not None and result.node.op == "planted.by_batch.default", result.text()
    assert [row.differing for row in result.variants] == [2, 2, 0]
    json.loads(result.json())


def test_the_reproduction_runs_by_itself(tmp_path: Path) -> None:
    result = find(Layers(Planted(), 2, 4), randn(4, 5, 6), batch_dim=0)
    script, tensors = result.write_reproduction(tmp_path / "reproduction.py")
    assert tensors.exists()
    assert len(script.read_text().splitlines()) < 30
    environment = {**os.environ, "PYTHONPATH": str(Path(bi_inductor.__file__).parent.parent)}
    completed = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=False)
    assert completed.stdout == "1 of 30 elements differ\n", completed.stderr


def test_chunks_of_samples() -> None:
    """Every sample is compared in some chunk; the last chunk overlaps the one before."""
    result = find(Layers(Planted(), 1, 3), randn(5, 8), variants=[Variant(), Variant(chunk=2), Variant(samples=[3, 1], chunk=1)])
    assert [(row.name, row.first) for row in result.variants] == [
        ("batch of 5, chunk 1 of 3", None),
        ("batch of 5, chunk 2 of 3", None),
        ("batch of 5, chunk 3 of 3", None),
        ("samples 3, 1, chunk 1 of 2", "by_batch"),
        ("samples 3, 1, chunk 2 of 2", "by_batch"),
    ]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_chunks_of_positions(backend: str) -> None:
    """A position by itself is the same in a chunk; what looks at others, or counts them, is not."""
    variants = [Variant(), Variant(sequence_chunk=3), Variant(samples=[0], sequence_chunk=2)]
    arguments: dict[str, Any] = {"variants": variants, "sequence_dim": 1, "backend": backend}
    same = find(lambda x: torch.relu(x) * 2, randn(4, 7, 8), **arguments)
    assert same and len(same.variants) == 3 + 4, same.text()
    assert same.variants[2].name == "batch of 4, chunk 3 of 3"
    looks = find(lambda x: torch.relu(x).cumsum(1) + 1, randn(4, 7, 8), **arguments)
    assert looks.node is not None and looks.node.op == "aten.cumsum.default"
    assert [row.first is not None for row in looks.variants[:3]] == [False, True, True]
    if backend == "eager":
        counts = find(lambda x: x * torch.arange(x.shape[1]).unsqueeze(1), randn(4, 7, 8), **arguments)
        assert counts.node is not None and "counts positions from the start of each chunk" in counts.node.cause


def test_a_choice_by_the_length_is_refused() -> None:
    def chooses(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[1] > 4 else x + x

    assert find(chooses, randn(4, 7, 8), sequence_dim=1, variants=[Variant(), Variant(pad_right=1)])
    with pytest.raises(CaptureError, match=r"chooses by the length \(.*length.* holds for the given samples and not for one of 3\)"):
        find(chooses, randn(4, 7, 8), sequence_dim=1, variants=[Variant(), Variant(sequence_chunk=3)])


def test_chunks_that_cannot_be() -> None:
    for variant, message in (
        (Variant(chunk=4), r"variants\[1\].chunk: got 4; allowed are whole numbers from 1 to 3"),
        (Variant(sequence_chunk=1), r"sequence_chunk: got 1; allowed are whole numbers from 2 to 6"),
        (Variant(chunk=2, neighbours=0.0), "cannot be joined with padding or neighbours"),
    ):
        with pytest.raises(ValueError, match=message):
            find(Exact(), randn(4, 7), sequence_dim=1, variants=[Variant(), variant])
    with pytest.raises(ValueError, match="the first variant"):
        find(Exact(), randn(4, 7), variants=[Variant(chunk=2), Variant()])
    with pytest.raises(ValueError, match="sequence_chunk needs sequence_dim"):
        find(Exact(), randn(4, 7), variants=[Variant(), Variant(sequence_chunk=2)])
