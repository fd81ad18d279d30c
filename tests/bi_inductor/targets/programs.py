"""Programs that are compiled for described GPUs: functions that return (model, inputs)."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


def pointwise():
    """Multiplications followed by additions, which a compiler would like to contract. As most programs do, it seeds torch."""
    torch.manual_seed(0)
    return lambda x, y: (x * y + x, x * 3 - y * y), (torch.randn(8, 96), torch.randn(8, 96))


def largest():
    """A reduction that Inductor writes itself, in bfloat16."""
    return lambda x: x - x.amax(-1, keepdim=True), torch.randn(8, 64).bfloat16()


def _rows(count):
    x = torch.empty(count, 96, device="meta")
    torch._dynamo.maybe_mark_dynamic(x, 0)
    return lambda x: torch.sigmoid(x) * x, x


def rows_1():
    return _rows(1)


def rows_2():
    return _rows(2)


def rows_16():
    return _rows(16)


def rows_17():
    return _rows(17)


def rows_4096():
    return _rows(4096)


def two_layers():
    """Tied parameters, a buffer, inputs by name."""
    layer = torch.nn.Embedding(16, 32)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = layer, layer
            self.register_buffer("scale", torch.ones(32))

        def forward(self, tokens):
            return (self.first(tokens) - self.second(tokens)) * self.scale

    return Model(), {"tokens": torch.randint(0, 16, (2, 5))}


def unsupported():
    return torch.igamma, (torch.rand(4, 8), torch.rand(4, 8))


def fails():
    def model(x):
        raise RuntimeError("as planned")

    return model, torch.randn(2)


class LlamaBlock(nn.Module):
    """A layer of a Llama: hidden 512, 8 heads of 64 that share 2 heads of keys and values."""

    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(512, eps=1e-5), nn.RMSNorm(512, eps=1e-5)
        self.q, self.k, self.v = (nn.Linear(512, n, bias=False) for n in (512, 128, 128))
        self.o = nn.Linear(512, 512, bias=False)
        self.gate, self.up = nn.Linear(512, 1536, bias=False), nn.Linear(512, 1536, bias=False)
        self.down = nn.Linear(1536, 512, bias=False)

    def forward(self, x, cos, sin):
        def heads(projection):
            return projection(y).unflatten(-1, (-1, 64)).transpose(1, 2)

        def rotated(z):
            first, second = z.chunk(2, -1)
            return z * cos + torch.cat((-second, first), -1) * sin

        y = self.attention_norm(x)
        out = F.scaled_dot_product_attention(rotated(heads(self.q)), rotated(heads(self.k)), heads(self.v), is_causal=True, enable_gqa=True)
        x = x + self.o(out.transpose(1, 2).flatten(2))
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def llama_block():
    with torch.device("meta"):
        table = torch.empty(128, 64, dtype=torch.bfloat16)
        return LlamaBlock().bfloat16(), (torch.empty(2, 128, 512, dtype=torch.bfloat16), table, table)


class BertBlock(nn.Module):
    """A layer of a BERT: hidden 384, 12 heads of 32, with a mask of keys."""

    def __init__(self):
        super().__init__()
        self.qkv, self.o = nn.Linear(384, 3 * 384), nn.Linear(384, 384)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(384), nn.LayerNorm(384)
        self.up, self.down = nn.Linear(384, 1536), nn.Linear(1536, 384)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).unflatten(-1, (3, 12, 32)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        x = self.attention_norm(x + self.o(out.transpose(1, 2).flatten(2)))
        return self.mlp_norm(x + self.down(F.gelu(self.up(x))))


def bert_block():
    with torch.device("meta"):
        return BertBlock().half(), (torch.empty(4, 64, 384, dtype=torch.float16), torch.empty(4, 64, dtype=torch.bool))


def experts():
    """Grouped matmuls of a mixture of 8 experts: its rows, and what its gradients need, in bfloat16 and in float32."""
    grouped = torch.ops.bi_inductor.grouped_matmul

    def model(x, weight, ends, wide, wide_weight):
        y = grouped(x, weight, ends)
        float32 = grouped(wide, wide_weight, ends), grouped(wide_weight, wide.mT, ends), grouped(wide.mT, wide, ends)
        return F.silu(y), grouped(weight, x.mT, ends), grouped(x.mT, y, ends), *float32

    with torch.device("meta"):
        bfloat16 = torch.bfloat16
        halves = torch.empty(96, 256, dtype=bfloat16), torch.empty(8, 256, 256, dtype=bfloat16)
        return model, (*halves, torch.empty(8, dtype=torch.int32), torch.empty(96, 256), torch.empty(8, 256, 256))


def products_of(columns: int, *, eights: bool = False):
    """Products whose results have so many columns: with an epilogue that reads another operand, of transposed storage with a K that no
    block divides, of batches and of groups; or one of float8 with such an epilogue.
    """
    with torch.device("meta"):
        if eights:
            x, weight = torch.empty(96, 256), torch.empty(columns, 256)
            x, weight = x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn)
            scales, y = (torch.empty(96, 1), torch.empty(1, columns)), torch.empty(96, columns, dtype=torch.bfloat16)
            product = functools.partial(torch._scaled_mm, out_dtype=torch.bfloat16)
            return lambda x, weight, y, *scales: F.silu(product(x, weight.t(), *scales)) * y, (x, weight, y, *scales)

        def model(x, weight, y, columns_of_x, rows_of_weight, batch, experts, ends):
            with_epilogue = F.silu(F.linear(x, weight)) * y
            transposed = columns_of_x.t() @ rows_of_weight
            return with_epilogue, transposed, x @ batch, torch.ops.bi_inductor.grouped_matmul(x, experts, ends)

        sizes = (96, 256), (columns, 256), (96, columns), (200, 96), (200, columns), (2, 256, columns), (4, 256, columns)
        return model, (*(torch.empty(size, dtype=torch.bfloat16) for size in sizes), torch.empty(4, dtype=torch.int32))


def eights():
    """Products of float8 with scales of rows and columns, of tensors, and in float32; of int8 weights, and of int8."""

    def model(x, weight, narrow, rows, columns, bias, floats, integers):
        product = torch._scaled_mm
        scaled = product(x, weight.t(), rows, columns, bias=bias, out_dtype=torch.bfloat16)
        by_tensor = product(x, weight.t(), rows[0], columns[0, :1], out_dtype=torch.bfloat16)
        wide = product(narrow, weight.t(), rows, columns, out_dtype=torch.float32)
        int8 = torch.ops.aten._weight_int8pack_mm(floats, integers, bias), torch._int_mm(integers, integers.t()) * 2
        return F.gelu(scaled), by_tensor, wide, *int8

    with torch.device("meta"):
        eights = (torch.empty(rows, 256, dtype=torch.float8_e4m3fn) for rows in (96, 512))
        narrow, rows, columns = torch.empty(96, 256, dtype=torch.float8_e5m2), torch.empty(96, 1), torch.empty(1, 512)
        bias, floats = (torch.empty(*size, dtype=torch.bfloat16) for size in ((512,), (96, 256)))
        integers = torch.empty(512, 256, dtype=torch.int8)
        return model, (*eights, narrow, rows, columns, bias, floats, integers)


def eights_of_amd():
    """Products of the formats of float8 that AMD has."""
    with torch.device("meta"):
        x, weight, one = torch.empty(96, 256), torch.empty(512, 256), torch.empty(())
        x, weight = x.to(torch.float8_e4m3fnuz), weight.to(torch.float8_e5m2fnuz)
    return lambda x, weight, one: torch._scaled_mm(x, weight.t(), one, one, out_dtype=torch.bfloat16), (x, weight, one)


def into_eights():
    """Results of float8, which is what _scaled_mm gives where it is not asked for another dtype."""
    with torch.device("meta"):
        x, weight, one = torch.empty(96, 256), torch.empty(512, 256), torch.empty(())
        x, weight = x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn)
    return lambda x, weight, one: torch._scaled_mm(x, weight.t(), one, one), (x, weight, one)


def scans():
    """Chains along the last dim and along another one, in both types of accumulation."""

    def model(x):
        return x.cumsum(-1), (1 + x / 8).cumprod(1), x.logcumsumexp(-1), x.bfloat16().cumsum(0)

    return model, torch.empty(16, 40, 50, device="meta")


def scatters():
    """Every reduction by an index for each element, whole slices added, and the gradient of a table."""
    ops = torch.ops.bi_inductor

    def model(x, src, index, tokens, grad):
        written = [ops.scatter(x, 1, index, src, reduce, False) for reduce in ("set", "sum", "prod", "amax", "amin", "mean")]
        return written, ops.scatter(x, 1, index[0], src, "sum"), ops.embedding_backward(grad, tokens, 1000, 0)

    with torch.device("meta"):
        index, tokens = torch.empty(4, 64, dtype=torch.int64), torch.empty(2, 50, dtype=torch.int64)
        return model, (torch.empty(4, 16), torch.empty(4, 64), index, tokens, torch.empty(2, 50, 384, dtype=torch.bfloat16))


def flex():
    """Flex attention with Gemma's cap on scores and the causal rule; 8 heads of 64 share 2 heads of keys and values."""

    def model(q, k, v):
        blocks = create_block_mask(lambda b, h, i, j: j <= i, None, None, 128, 128, device=q.device)
        out, sums = flex_attention(q, k, v, lambda score, b, h, i, j: 50 * torch.tanh(score / 50), blocks, enable_gqa=True, return_lse=True)
        return out, sums

    return model, tuple(torch.empty(2, heads, 128, 64, dtype=torch.bfloat16, device="meta") for heads in (8, 2, 2))


def blocks_of_a_cache():
    """Attention over a paged cache: 8 heads of 128 share 2 heads of keys and values; all keys, and a window of them in float32."""

    def model(q, cache, table, starts, lengths):
        paged = torch.ops.bi_inductor.paged_attention
        return paged(q, cache, table, starts, lengths, 0.125), paged(q.float(), cache.float(), table, starts, lengths, 0.125, 100)

    with torch.device("meta"):
        q, cache = torch.empty(96, 8, 128, dtype=torch.bfloat16), torch.empty(512, 16, 2, 256, dtype=torch.bfloat16)
        return model, (q, cache, *(torch.empty(size, dtype=torch.int32) for size in ((12, 64), (13,), (12,))))


def every_attention():
    """Attention of 16 bits and of float32 in every head dim of the table: causal, masked, over a cache, in a window, with shared keys."""
    from bi_inductor.templates.attention.configurations import CONFIGURATIONS

    ops, dims = torch.ops.bi_inductor, [*CONFIGURATIONS["sm_90"]["16 bit"]]

    def model(tensors, numbers):
        table, starts, lengths, few_starts = numbers
        results = []
        for q, k, v, mask, cache in tensors:
            tokens = q[0].transpose(0, 1)
            paged = functools.partial(ops.paged_attention, cache=cache, table=table, lengths=lengths, scale=0.125)
            results += [
                ops.attention(q, k[:, :, :96], v[:, :, :96], None, True),
                ops.attention(q, k, v, mask),
                ops.attention(q[:, :, :1], k, v),
            ]
            results += [ops.attention_lse(q, k), paged(tokens, starts=starts), paged(tokens, starts=starts, window=100)]
            results += [paged(tokens[:12], starts=few_starts)]
        return results

    with torch.device("meta"):
        tensors = []
        for dtype in (torch.bfloat16, torch.float32):
            for dim in dims:
                q, *kv = (torch.empty(2, heads, length, dim, dtype=dtype) for heads, length in ((8, 96), (2, 2048), (2, 2048)))
                cache = torch.empty(512, 16, 2, 2 * dim, dtype=dtype)
                tensors.append((q, *kv, torch.empty(2, 1, 96, 2048, dtype=dtype), cache))
        return model, (tensors, tuple(torch.empty(size, dtype=torch.int32) for size in ((12, 64), (13,), (12,), (13,))))


def shared_keys():
    """One query of each sample and one token of each request, whose keys several programs share."""

    def model(q, k, v, mask, tokens, cache, table, starts, lengths):
        ops = torch.ops.bi_inductor
        return ops.attention(q, k, v), ops.attention(q, k, v, mask), ops.paged_attention(tokens, cache, table, starts, lengths, 0.125)

    with torch.device("meta"):
        q, *kv = (torch.empty(2, heads, keys, 128, dtype=torch.bfloat16) for heads, keys in ((8, 1), (2, 2048), (2, 2048)))
        tokens, cache = torch.empty(12, 8, 128, dtype=torch.bfloat16), torch.empty(512, 16, 2, 256, dtype=torch.bfloat16)
        mask = torch.empty(2, 1, 1, 2048, dtype=torch.bool)
        return model, (q, *kv, mask, tokens, cache, *(torch.empty(size, dtype=torch.int32) for size in ((12, 64), (13,), (12,))))


def batch_of(samples: int, *, dynamic: bool):
    """Templates over a batch of so many samples, which is symbolic or not: a linear, attention, a norm, softmax, and a chain."""

    def model(x, weight, scale):
        q, k, v = F.linear(x, weight).unflatten(-1, (3, 4, 64)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return F.rms_norm(out, (256,), scale).softmax(-1), out.cumsum(-1)

    with torch.device("meta"):
        x, *parameters = (torch.empty(size, dtype=torch.bfloat16) for size in ((samples, 16, 256), (768, 256), (256,)))
    if dynamic:
        torch._dynamo.maybe_mark_dynamic(x, 0)
    return model, (x, *parameters)


def sums():
    """Reductions, softmax and a matmul in float32."""

    def model(x, weight):
        return x.sum(-1), x.mean(0), x.softmax(-1), x.log_softmax(-1), x.prod(-1), x.std(-1), F.group_norm(x[:, :, None], 4), x @ weight

    return model, (torch.empty(16, 256, device="meta"), torch.empty(256, 128, device="meta"))


def rest_of_templates():
    """What no other program has: norms in float32, sums over samples, convolutions, products in float64, and those of a single block."""

    def model(x, weight, bias, images, kernel, grouped_kernel, wide):
        norms = F.layer_norm(x, (256,), weight, bias), F.rms_norm(x, (256,), weight), F.group_norm(x[:, :, None], 4, weight, bias)
        samples = torch.ops.bi_inductor.sample_sum(x), torch.ops.bi_inductor.sample_sum(x.half())
        convolutions = F.conv2d(images, kernel, bias[:32], padding=1), F.conv2d(images, grouped_kernel, stride=2, groups=2)
        halves = F.conv2d(images.half(), kernel.half(), padding=1)
        batches = torch.bmm(x.unflatten(1, (4, 64)), x.unflatten(1, (4, 64)).mT)
        short = F.gelu(F.linear(x[:, :16], wide.float()[:, :16], bias[:40]))
        return norms, samples, convolutions, halves, batches, short, wide @ wide.t(), wide.float() @ wide.t().float()

    with torch.device("meta"):
        images, kernels = torch.empty(2, 16, 12, 12), (torch.empty(32, 16, 2, 1), torch.empty(32, 8, 2, 1))
        return model, (torch.empty(16, 256), torch.empty(256), torch.empty(256), images, *kernels, torch.empty(40, 70).double())


# Of the models that are served: padded, and of each row of the table.
HEAD_DIMS = (64, 80, 96, 128, 256)


def every_head_dim():
    """Causal attention and attention over a cache, in every head dim and both dtypes of 16 bits."""

    def model(tensors, numbers):
        ops, (table, starts, lengths) = torch.ops.bi_inductor, numbers
        causal = [ops.attention(q, k, v, None, True) for q, k, v, _ in tensors]
        return causal, [ops.paged_attention(q[0].transpose(0, 1), cache, table, starts, lengths, 0.125) for q, _, _, cache in tensors]

    with torch.device("meta"):
        tensors = []
        for dtype in (torch.bfloat16, torch.float16):
            for dim in HEAD_DIMS:
                q, *kv = (torch.empty(2, heads, 96, dim, dtype=dtype) for heads in (8, 2, 2))
                tensors.append((q, *kv, torch.empty(64, 16, 2, 2 * dim, dtype=dtype)))
        return model, (tensors, tuple(torch.empty(size, dtype=torch.int32) for size in ((12, 6), (13,), (12,))))


# One kernel each: their sizes differ, so they are not fused.
ELEMENTWISE = {
    "a + 3 * b": lambda x, y, z: torch.add(x, y, alpha=3),
    "addcmul": lambda x, y, z: torch.addcmul(x, y, z),
    "addcmul, scaled": lambda x, y, z: torch.addcmul(x, y, z, value=3),
    "addcdiv, scaled": lambda x, y, z: torch.addcdiv(x, y, z, value=3),
    "a - 3 * b": lambda x, y, z: torch.sub(x, y, alpha=3),
    "addcdiv": lambda x, y, z: torch.addcdiv(x, y, z),
    "lerp": lambda x, y, z: torch.lerp(x, y, z),
    "atan": lambda x, y, z: torch.atan(x),
    "exp": lambda x, y, z: torch.exp(x),
    "erf": lambda x, y, z: torch.erf(x),
    "tanh": lambda x, y, z: torch.tanh(x),
    "log": lambda x, y, z: torch.log(x),
    "sigmoid": lambda x, y, z: torch.sigmoid(x),
    "rsqrt": lambda x, y, z: torch.rsqrt(x),
    "x * y + z": lambda x, y, z: x * y + z,
}


def elementwise():
    """Operations of which Inductor writes fused multiply-adds on purpose, and others beside them (test_fma.py)."""

    def model(tensors):
        return [function(*given) for function, given in zip(ELEMENTWISE.values(), tensors, strict=True)]

    return model, ([tuple(torch.empty(8 + i, 96, device="meta") for _ in range(3)) for i in range(len(ELEMENTWISE))],)


def one_sample():
    """torch's kernel runs on one sample at a time on the CPU."""
    return torch.linalg.inv, torch.randn(2, 4, 4)


def views_of_views():
    """Average pooling sums over a view of a view."""
    return nn.AvgPool2d(2), torch.randn(2, 3, 8, 8)


def operator(name: str) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """One call of an operator of bi_inductor."""
    from tests.bi_inductor.test_operators import calls

    leaves, structure = pytree.tree_flatten(calls(name, torch.float32)[0])
    is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]

    def model(*tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        return getattr(torch.ops.bi_inductor, name)(
            *pytree.tree_unflatten([next(given) if tensor else leaf for leaf, tensor in zip(leaves, is_tensor, strict=True)], structure)
        )

    return model, tuple(leaf for leaf, tensor in zip(leaves, is_tensor, strict=True) if tensor)


def __getattr__(name: str) -> Callable[[], Any]:
    """``operator_matmul``, ``products_4096``, ``eights_4096``, ``static_17``, ``dynamic_17`` and the like."""
    if match := re.fullmatch(r"(products|eights)_(\d+)", name):
        return functools.partial(products_of, int(match[2]), eights=match[1] == "eights")
    if match := re.fullmatch(r"(static|dynamic)_(\d+)", name):
        return functools.partial(batch_of, int(match[2]), dynamic=match[1] == "dynamic")
    if name.startswith("operator_"):
        return functools.partial(operator, name.removeprefix("operator_"))
    raise AttributeError(name)
