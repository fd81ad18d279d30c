"""Ops that torch takes apart by shape, stride or grad mode stay whole, and a sample keeps its bits through every module built on them.

Each group below is one module of many outputs, compiled four times: for dynamic shapes (batches of 2, 3 and 8) and for the static shapes
of a batch of one, in inference and with gradients. Inputs and outputs have the batch first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch._C import DispatchKey
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import bi_inductor  # noqa: F401  # registers the backend
from bi_inductor.passes.capture import CAPTURED, captured_ops

Values = dict[str, Tensor]
attention = functional.scaled_dot_product_attention

BATCH = 8
# Rows of the batch that are run on their own; the last is compiled for static shapes.
PARTS = (slice(2, 5), slice(5, 7), slice(6, 7))


def takes_mask_and_causal() -> bool:
    """Whether torch's fused attention takes a mask together with is_causal: 2.13 and older do."""
    x = torch.zeros(1, 1, 2, 4)
    try:
        attention(x, x, x, torch.ones(2, 2, dtype=torch.bool), is_causal=True)
    except RuntimeError:
        return False
    return True


MASK_AND_CAUSAL = takes_mask_and_causal()


class Group(nn.Module):
    """A module of named results; ``inputs`` makes a batch for it."""

    tolerance = 1e-5

    def inputs(self) -> Values:
        raise NotImplementedError


class AttentionForms(Group):
    """Every form of scaled_dot_product_attention: torch takes three different ways for them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", torch.randn(1, 2, 7, 16))

    def inputs(self) -> Values:
        return {
            "q": torch.randn(BATCH, 4, 5, 16),
            "k": torch.randn(BATCH, 4, 7, 16),
            "v": torch.randn(BATCH, 4, 7, 16),
            "padding": torch.arange(7) < torch.arange(1, BATCH + 1).view(BATCH, 1, 1, 1),
            "bias": torch.randn(BATCH, 1, 5, 7),
        }

    def forward(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor, bias: Tensor) -> Values:
        few_k, few_v, samples = k[:, :2], v[:, :2], q.shape[0]
        # Forms whose backward is that of another form stay out of the backward graph: it takes long enough to compile.
        fixed_q, fixed_k, fixed_v = q.detach(), k.detach(), v.detach()
        fixed = [fixed_q, fixed_k, fixed_v]
        grouped = [fixed_q, fixed_k[:, :2], fixed_v[:, :2]]
        heads_last = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in fixed]
        return {
            "four dims": attention(q, k, v),
            "three dims": attention(q[:, 0], k[:, 0], v[:, 0]),
            "two dims": attention(*(t[0, 0] for t in fixed)).unsqueeze(0),
            "five dims": attention(*(t.unflatten(1, (2, 2)) for t in fixed)),
            "broadcast heads": attention(q, k[:, :1], v[:, :1]),
            "grouped heads": attention(q, few_k, few_v, padding, enable_gqa=True),
            "grouped heads, five dims": attention(*(t.unsqueeze(1) for t in grouped), enable_gqa=True),
            "grouped heads, three dims": attention(*(t[0] for t in grouped), enable_gqa=True).unsqueeze(0),
            "grouped heads, one memory for all samples": attention(fixed_q, self.memory, self.memory, enable_gqa=True),
            "grouped heads, other number of values": attention(q, few_k, v[:, :1], enable_gqa=True),
            "causal": attention(*fixed, is_causal=True),
            **({"causal and padding": attention(q, k, v, padding, is_causal=True)} if MASK_AND_CAUSAL else {}),
            "padding": attention(q, k, v, padding),
            "float mask": attention(*fixed, bias.detach()),
            "mask with gradient": attention(q, k, v, bias),
            "mask of three dims": attention(*(t[:, 0] for t in fixed), padding[:, 0]),
            "scale": attention(q, k, v, scale=0.3),
            "narrow values": attention(q, k, v[..., :8]),
            "last dim not contiguous": attention(q.mT.contiguous().mT, k.mT.contiguous().mT, v.mT.contiguous().mT),
            "one query": attention(q[:, :, :1], k, v),
            "viewed": attention(*fixed).view(samples, 20, 16),
            "heads merged": attention(*heads_last).transpose(1, 2).view(samples, 5, 64),
        }


class HalfPrecision(Group):
    """bfloat16, where one rounding more or less shows."""

    tolerance = 5e-2

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 24, dtype=torch.bfloat16)
        self.weight = nn.Parameter(torch.randn(32))

    def inputs(self) -> Values:
        return {"x": torch.randn(BATCH, 5, 32).bfloat16(), "bias": torch.randn(BATCH, 1, 5, 5)}

    def forward(self, x: Tensor, bias: Tensor) -> Values:
        sequence_first = x.transpose(0, 1).contiguous()
        heads = x.unflatten(2, (2, 16)).transpose(1, 2)
        return {
            "linear": self.linear(x),
            "linear on transposed storage": self.linear(sequence_first.transpose(0, 1)),
            "linear, sequence first": self.linear(sequence_first).transpose(0, 1),
            "linear on a vector": self.linear(x[0, 0].detach()).detach().unsqueeze(0),
            "rms_norm": functional.rms_norm(x, [32]),
            "rms_norm, float32 weight": functional.rms_norm(x, [32], self.weight, 1e-6),
            "rms_norm, float32 input": functional.rms_norm(x.float(), [32], self.weight),
            "rms_norm over two dims": functional.rms_norm(x, [5, 32]),
            "attention": attention(heads, heads, heads),
            "attention, float32 mask": attention(heads, heads, heads, bias),
        }


class Autocast(Group):
    """float32 modules under autocast: the ops run in the dtypes that autocast gives them."""

    tolerance = 5e-2

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)
        self.layer_norm = nn.LayerNorm(32)
        self.rms_norm = nn.RMSNorm(32)

    def inputs(self) -> Values:
        return {"x": torch.randn(BATCH, 5, 32)}

    def forward(self, x: Tensor) -> Values:
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.linear(x)
            heads = x.unflatten(2, (2, 16)).transpose(1, 2)
            return {
                "linear": hidden,
                "linear on transposed storage": self.linear(x.transpose(0, 1).contiguous().transpose(0, 1)),
                "matmul": hidden @ hidden.mT,
                "attention": attention(heads, heads, heads),
                "layer_norm": self.layer_norm(x),
                "layer_norm of bfloat16": self.layer_norm(hidden),
                "rms_norm": self.rms_norm(x),
                "rms_norm of bfloat16": self.rms_norm(hidden),
                "softmax": hidden.softmax(-1),
            }


class Attentions(Group):
    """nn.MultiheadAttention: without gradients in eval mode it takes torch's fast path, with them the slow one."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_first = nn.MultiheadAttention(32, 4, batch_first=True).eval()
        self.sequence_first = nn.MultiheadAttention(32, 4).eval()
        self.cross = nn.MultiheadAttention(32, 4, kdim=16, vdim=16, batch_first=True).eval()

    def inputs(self) -> Values:
        return {
            "x": torch.randn(BATCH, 5, 32),
            "memory": torch.randn(BATCH, 7, 16),
            "padding": torch.arange(5) >= torch.arange(BATCH).view(BATCH, 1) % 5 + 1,
        }

    def forward(self, x: Tensor, memory: Tensor, padding: Tensor) -> Values:
        causal = torch.ones(5, 5, dtype=torch.bool, device=x.device).triu(1)
        sequence = x.transpose(0, 1)
        both, weights = self.batch_first(x, x, x, key_padding_mask=padding, attn_mask=causal)
        without_weights, _ = self.sequence_first(sequence, sequence, sequence, attn_mask=causal, need_weights=False)
        cross, weights_of_heads = self.cross(x, memory, memory, average_attn_weights=False)
        return {
            "batch first, padding and causal": both,
            "weights": weights,
            "sequence first, causal": without_weights.transpose(0, 1),
            "cross": cross,
            "weights of each head": weights_of_heads,
        }


class EncoderLayers(Group):
    """nn.TransformerEncoderLayer: one fused op in eval mode without gradients, its parts otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.evaluated = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True).eval()
        self.trained = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, activation="gelu", batch_first=True, norm_first=True).train()

    def inputs(self) -> Values:
        return {"x": torch.randn(BATCH, 5, 32), "padding": torch.arange(5) >= torch.arange(BATCH).view(BATCH, 1) % 5 + 1}

    def forward(self, x: Tensor, padding: Tensor) -> Values:
        return {
            "post, eval, padding": self.evaluated(x, src_key_padding_mask=padding).masked_fill(padding.unsqueeze(-1), 0),
            "pre, train": self.trained(x),
        }


class Checkpointed(Group):
    """Activation checkpointing: the body is a graph of its own, and its forward runs again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 32)
        self.norm = nn.RMSNorm(32)

    def inputs(self) -> Values:
        return {"x": torch.randn(BATCH, 5, 32)}

    def block(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        x = x + attention(x, x, x)
        return self.second(functional.gelu(self.first(x))).softmax(-1)

    def forward(self, x: Tensor) -> Values:
        return {"checkpointed": torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)}


class Branches(Group):
    """torch.cond: the branches are graphs of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(32, 64)
        self.register_buffer("taken", torch.tensor(1.0))

    def inputs(self) -> Values:
        return {"x": torch.randn(BATCH, 32)}

    def forward(self, x: Tensor) -> Values:
        def when_true(x: Tensor) -> Tensor:
            return self.first(x).softmax(-1)

        def when_false(x: Tensor) -> Tensor:
            return functional.rms_norm(self.second(x), [64])

        return {
            "true": torch.cond(self.taken > 0, when_true, when_false, (x,)),
            "false": torch.cond(self.taken < 0, when_true, when_false, (x,)),
        }


GROUPS = {group.__name__: group for group in (AttentionForms, HalfPrecision, Autocast, Attentions, EncoderLayers, Checkpointed, Branches)}


def made(group: str) -> tuple[Group, Values]:
    """The module with seeded weights, and its batch."""
    torch.manual_seed(0)
    module = GROUPS[group]()
    return module, module.inputs()


def results(fn: Callable[..., Values], inputs: Values, rows: slice, training: bool) -> Values:
    """What ``fn`` gives for some rows; under ``training`` also the gradients of its inputs for fixed gradients of its results."""
    batch = {name: value[rows].clone() for name, value in inputs.items()}
    leaves = {name: value.requires_grad_() for name, value in batch.items() if value.is_floating_point() and training}
    with torch.set_grad_enabled(training):
        out = fn(**batch)
    values = {name: value.detach() for name, value in out.items()}
    if training:
        differentiable = [value for value in out.values() if value.requires_grad]
        grads = [torch.arange(value[0].numel()).cos().to(value.dtype).view(value.shape[1:]).expand_as(value) for value in differentiable]
        for name, grad in zip(leaves, torch.autograd.grad(differentiable, list(leaves.values()), grads), strict=True):
            values[f"gradient of {name}"] = grad
    return values


def bits(value: Tensor) -> Tensor:
    """The values as integers, every NaN as the same one."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()]
    return value.masked_fill(value.isnan(), torch.nan).contiguous().view(integers)


def changed(values: Values, whole: Values, rows: slice) -> list[str]:
    """The names whose rows differ from the same rows of the whole batch. Results of one sample only ("two dims") have no rows."""
    pairs = {name: (value, whole[name][rows]) for name, value in values.items() if whole[name].shape[0] == BATCH}
    return [name for name, (value, expected) in pairs.items() if not torch.equal(bits(value), bits(expected))]


@pytest.mark.parametrize("group", GROUPS)
def test_rows_keep_their_bits(group: str) -> None:
    module, inputs = made(group)
    everything = slice(0, BATCH)
    dynamic = torch.compile(module, backend="batch_invariant", dynamic=True)
    inference, training = (results(dynamic, inputs, everything, under_grad) for under_grad in (False, True))
    assert changed(inference, training, everything) == [], "under no_grad"
    static = torch.compile(module, backend="batch_invariant", dynamic=False)
    for rows in PARTS:
        size = rows.stop - rows.start
        compiled = static if size == 1 else dynamic
        assert changed(results(compiled, inputs, rows, False), inference, rows) == [], f"batch of {size}"
        assert changed(results(compiled, inputs, rows, True), training, rows) == [], f"batch of {size} under grad"

    expected = results(module, inputs, everything, True)
    for name, value in training.items():
        torch.testing.assert_close(
            value, expected[name], rtol=module.tolerance, atol=module.tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("group", GROUPS)
def test_stock_varies(group: str) -> None:
    """Control: eager changes rows in this very module."""
    module, inputs = made(group)
    whole = results(module, inputs, slice(0, BATCH), True)
    if not any(changed(results(module, inputs, rows, True), whole, rows) for rows in PARTS):
        pytest.skip("this CPU's BLAS has one order for all numbers of rows")


def test_a_planted_variant_is_seen() -> None:
    """Control: one ulp in one row of the smaller batch."""
    module, inputs = made("Branches")
    whole = results(module, inputs, slice(0, BATCH), False)
    values = {name: value[PARTS[0]].clone() for name, value in whole.items()}
    values["true"][1, 3] = torch.nextafter(values["true"][1, 3], torch.tensor(2.0))
    assert changed(values, whole, PARTS[0]) == ["true"]


def test_one_rounding_whatever_the_strides() -> None:
    """With stock a transposed batch of 1 becomes addmm, one of 2 bmm + add with a second rounding. Here strides change nothing."""
    module, inputs = made("HalfPrecision")
    compiled = torch.compile(module, backend="batch_invariant", dynamic=True)
    values = results(compiled, inputs, slice(0, BATCH), False)
    for name in ("linear on transposed storage", "linear, sequence first"):
        assert torch.equal(bits(values[name]), bits(values["linear"])), name
    with torch.no_grad():
        x = inputs["x"].double()
        exact = functional.linear(x, module.linear.weight.double(), module.linear.bias.double())
    nearest = exact.bfloat16()
    assert (values["linear"] != nearest).float().mean() < 0.01


# --- Attention where torch has no bits to keep, or refuses -------------------------------------------------------------


def test_attention_dropout_is_random_and_scaled() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return attention(q, k, v, dropout_p=0.5), attention(q, k[:, :2], v[:, :2], mask, dropout_p=0.5, enable_gqa=True)

    q, k = torch.randn(2, 4, 5, 16), torch.randn(2, 4, 64, 16)
    mask = torch.rand(5, 64) > 0.2
    compiled = torch.compile(fn, backend="batch_invariant", dynamic=True)
    results = [compiled(q, k, torch.ones_like(k), mask) for _ in range(2)]
    for first, second in zip(*results, strict=True):
        assert not torch.equal(first, second)
        # The kept half of the probabilities, doubled, sums to about one.
        assert abs(first.mean().item() - 1) < 0.2


@pytest.mark.parametrize("dims", [3, *([] if MASK_AND_CAUSAL else [4])])
def test_mask_and_causal_together_are_refused_where_torch_refuses(dims: int) -> None:
    def fn(q: Tensor, mask: Tensor) -> Tensor:
        return attention(q, q, q, mask, is_causal=True)

    q, mask = torch.randn(2, 4, 5, 16)[(0,) * (4 - dims)], torch.ones(5, 5, dtype=torch.bool)
    with pytest.raises(RuntimeError, match="is_causal"):
        fn(q, mask)
    with pytest.raises(RuntimeError, match="is_causal"):
        torch.compile(fn, backend="batch_invariant")(q, mask)


# --- The registry ------------------------------------------------------------------------------------------------------

BOTH_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.AutogradCPU)


def registered() -> list[Any]:
    """The Python kernels of the captured ops."""
    return [dict(op.py_kernels) for op in CAPTURED]


def traced() -> set[str]:
    """The ops that a linear, an attention and an rms_norm become."""

    def fn(x: Tensor, weight: Tensor) -> Tensor:
        x = functional.linear(x, weight)
        return functional.rms_norm(attention(x, x, x), [4])

    with enable_python_dispatcher():
        graph = make_fx(fn, tracing_mode="fake")(torch.randn(2, 3, 4), torch.randn(4, 4)).graph
    return {str(node.target) for node in graph.nodes if node.op == "call_function"}


@pytest.fixture
def untouched() -> Iterator[None]:
    before = registered()
    yield
    assert registered() == before


OURS = {f"bi_inductor.{name}.default" for name in ("matmul", "attention", "rms_norm")}


@pytest.mark.usefixtures("untouched")
def test_ops_are_captured_inside_the_context_only() -> None:
    before = traced()
    assert not any(name.startswith("bi_inductor.") for name in before)
    with captured_ops():
        assert traced() >= OURS
        assert all(op.py_kernels.keys() >= set(BOTH_KEYS) for op in CAPTURED)
    assert traced() == before


@pytest.mark.usefixtures("untouched")
def test_contexts_nest() -> None:
    with captured_ops():
        with captured_ops():
            assert traced() >= OURS
        assert traced() >= OURS


@pytest.mark.usefixtures("untouched")
def test_an_error_restores_the_registry() -> None:
    with pytest.raises(KeyError), captured_ops(), captured_ops():
        raise KeyError
    assert not OURS & traced()


@pytest.mark.usefixtures("untouched")
def test_kernels_that_others_registered_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    op = torch.ops.aten.linear.default

    def theirs(*args: Any) -> Any:
        raise AssertionError

    monkeypatch.setitem(op.py_kernels, DispatchKey.AutogradCPU, theirs)
    with captured_ops():
        assert op.py_kernels[DispatchKey.AutogradCPU] is not theirs
    assert op.py_kernels[DispatchKey.AutogradCPU] is theirs


@pytest.mark.usefixtures("untouched")
def test_other_threads_trace_as_ever() -> None:
    """One thread stays inside the context while another traces, then the other way round, then both at once."""
    outside = traced()
    seen: dict[str, set[str]] = {}
    inside, done = threading.Event(), threading.Event()

    def capture() -> None:
        with captured_ops():
            inside.set()
            done.wait(60)
            seen["inside"] = traced()

    thread = threading.Thread(target=capture)
    thread.start()
    assert inside.wait(60)
    seen["outside"] = traced()
    with captured_ops():
        seen["both"] = traced()
    seen["after"] = traced()
    done.set()
    thread.join()
    assert seen["outside"] == seen["after"] == outside
    assert seen["inside"] == seen["both"]
    assert seen["inside"] >= OURS


@pytest.mark.usefixtures("untouched")
def test_eager_calls_never_reach_the_python_kernels() -> None:
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    expected = functional.linear(x, weight)
    with captured_ops(), torch.profiler.profile() as profile:
        value = functional.linear(x, weight)
    assert torch.equal(value, expected)
    assert not any("bi_inductor" in event.key for event in profile.key_averages())


def test_other_dtypes_and_devices_keep_torchs_path() -> None:
    def fn(x: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(x, weight)

    with captured_ops(), enable_python_dispatcher():
        integers = make_fx(fn, tracing_mode="fake")(torch.ones(2, 4, dtype=torch.int64), torch.ones(3, 4, dtype=torch.int64)).graph
        meta = make_fx(fn)(torch.empty(2, 4, device="meta"), torch.empty(3, 4, device="meta")).graph
    for graph in (integers, meta):
        assert not any("bi_inductor" in str(node.target) for node in graph.nodes)
