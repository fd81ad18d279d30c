"""On a real GPU: bits across batches, places, recompiles, streams and CUDA graphs; bits of the C++ kernels; accuracy; speed as ratios.

    python -m pytest -m gpu tests/gpu -s

Everything is skipped without a GPU. What only hardware shows is here: how tensor cores group their sums, races, and time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.roofline import HEAD_DIM, HEADS, KEYS, KV_HEADS, LINEARS, REQUESTS, ROWS
from bi_inductor.templates.library import FLOAT8
from bi_inductor.templates.matmul.descriptors import OPTION
from tests.templates.rows import assert_same_bits, differences, randn, relative_error

pytestmark = pytest.mark.gpu
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BATCHES = (1, 2, 3, 16, 17, 64, 100)
WIDTH = 512


def compiled(name: str, x: torch.Tensor, dynamic: bool | None = None, backend: str = "batch_invariant") -> Callable[..., torch.Tensor]:
    """The op of that name for tensors like ``x``."""
    return functools.partial(_call, torch.compile(OPS[name], backend=backend, dynamic=dynamic), parameters(x))


def _call(function: Callable[..., torch.Tensor], given: tuple[torch.Tensor, ...], x: torch.Tensor) -> torch.Tensor:
    return function(x, *given)


def parameters(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of the linear, made outside of what is compiled."""
    return randn(1000, WIDTH, dtype=x.dtype, seed=1).to(x.device), randn(1000, dtype=x.dtype, seed=2).to(x.device)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.gelu(functional.linear(x, weight, bias))


def attention(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.unflatten(1, (4, 2, 64)) * scale for scale in (1, 2, 3))
    return functional.scaled_dot_product_attention(q.repeat(1, 1, 20, 1), k.repeat(1, 1, 33, 1), v.repeat(1, 1, 33, 1))


OPS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "linear": linear,
    "attention": attention,
    "softmax": lambda x, weight, bias: torch.softmax(x, -1),
    "log_softmax": lambda x, weight, bias: torch.log_softmax(x, -1),
    "layer_norm": lambda x, weight, bias: functional.layer_norm(x, (WIDTH,)),
    "rms_norm": lambda x, weight, bias: functional.rms_norm(x, (WIDTH,)),
    "sum": lambda x, weight, bias: x.sum(-1),
    "var": lambda x, weight, bias: x.var(-1),
    "cumsum": lambda x, weight, bias: x.cumsum(-1),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_rows_are_the_same_in_every_batch(name: str, dtype: torch.dtype, dynamic: bool) -> None:
    x = randn(max(BATCHES), WIDTH, dtype=dtype).cuda()
    run = compiled(name, x, dynamic)
    whole = run(x)
    for m in BATCHES:
        assert_same_bits(run(x[:m].clone()), whole[:m], f"{m} rows")
    assert_same_bits(run(x.flip(0)), whole.flip(0), "another order")
    hostile = torch.full_like(x, float("nan"))
    hostile[7] = x[7]
    assert_same_bits(run(hostile)[7], whole[7], "beside NaN")


def test_control_torch_varies() -> None:
    x, weight = randn(100, 4096, dtype=torch.bfloat16).cuda(), randn(4096, 4096, dtype=torch.bfloat16, seed=1).cuda()
    assert any(differences((x @ weight)[:m], x[:m] @ weight) for m in BATCHES)


@pytest.mark.parametrize("name", ["sum", "var", "softmax", "layer_norm", "rms_norm", "cumsum"])
def test_bits_of_the_cpp_kernels(name: str) -> None:
    x = randn(17, WIDTH)
    assert_same_bits(compiled(name, x.cuda())(x.cuda()).cpu(), compiled(name, x)(x), name)


DEVICE = "cuda"


def scattered(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Sums of rows and of elements by an index, and the gradient of a table."""
    ops, zeros = torch.ops.bi_inductor, x[:9] * 0
    by_element = ops.scatter(zeros, 0, index[:, None].expand_as(x).contiguous(), x, "sum")
    return ops.scatter(zeros, 0, index, x, "sum"), by_element, ops.embedding_backward(x, index, 9)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_of_the_cpp_scatters(dtype: torch.dtype) -> None:
    x, index = randn(300, WIDTH, dtype=dtype), torch.randint(9, (300,), generator=torch.Generator().manual_seed(0))
    run = torch.compile(scattered, backend="batch_invariant")
    for found, expected in zip(run(x.to(DEVICE), index.to(DEVICE)), scattered(x, index), strict=True):
        assert_same_bits(found.cpu(), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_group_has_the_bits_of_its_matmul(dtype: torch.dtype) -> None:
    x, weight = randn(100, WIDTH, dtype=dtype).to(DEVICE), randn(4, WIDTH, 96, dtype=dtype, seed=1).to(DEVICE)
    grouped = torch.compile(torch.ops.bi_inductor.grouped_matmul, backend="batch_invariant")
    product = torch.compile(torch.ops.bi_inductor.matmul, backend="batch_invariant")
    for ends in ([0, 1, 18, 90], [30, 30, 99, 100]):
        found = grouped(x, weight, torch.tensor(ends, device=DEVICE))
        for group, (first, last) in enumerate(zip([0, *ends], ends, strict=False)):
            if first < last:
                assert_same_bits(found[first:last], product(x[first:last], weight[group]), f"rows {first} to {last}")
        assert_same_bits(found[ends[-1] :], torch.zeros_like(found[ends[-1] :]), "rows of no group")


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e5m2], ids=str)
def test_columns_are_the_same_in_every_tile(dtype: torch.dtype) -> None:
    """The tile follows the number of columns, which a transposed batch may be; on sm_90 and sm_100 so does the instruction's size."""
    x, weight = randn(70, 1008).to(dtype).to(DEVICE), randn(16384, 1008, seed=1).to(dtype).to(DEVICE)
    ops = torch.ops.bi_inductor
    product = torch.compile(ops.scaled_matmul if dtype in FLOAT8 else ops.matmul, backend="batch_invariant", dynamic=False)
    given = (torch.bfloat16,) if dtype in FLOAT8 else ()
    whole = product(x, weight.t(), *given)
    for columns in (16, 2064, 7184, 8208):
        assert_same_bits(product(x, weight[:columns].t(), *given), whole[:, :columns], f"{columns} columns")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_descriptors_have_the_bits_of_pointers(dtype: torch.dtype) -> None:
    if torch.cuda.get_device_capability()[0] not in (9, 10):
        pytest.skip("needs a tensor memory accelerator")
    x, weight = randn(300, 1024, dtype=dtype).to(DEVICE), randn(4096, 1024, dtype=dtype, seed=1).to(DEVICE)
    expected = torch.compile(functional.linear, backend="batch_invariant", dynamic=False)(x, weight)
    run = torch.compile(functional.linear, backend="batch_invariant", dynamic=True, options={OPTION: True})
    for m in (300, 1, 2, 17, 128, 129):
        assert_same_bits(run(x[:m].clone(), weight), expected[:m], f"{m} rows")
    # The same graph, from memory that no descriptor takes.
    shifted = torch.empty(x.numel() + 1, dtype=dtype, device=DEVICE)[1:].view_as(x).copy_(x)
    assert_same_bits(run(shifted, weight), expected, "beside a multiple of 16 bytes")


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_every_float8_is_multiplied_as_what_it_is(dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8, device=DEVICE).view(dtype)
    product = torch.compile(torch.ops.bi_inductor.scaled_matmul, backend="batch_invariant", dynamic=False)
    found = product(codes[:, None], torch.ones(1, 16, device=DEVICE).to(dtype), torch.float32)
    # A sum starts from +0, so a zero is positive.
    assert_same_bits(found, (codes.float() + 0.0)[:, None].expand(256, 16))


def product_of_eights(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """float8 with scales of rows and columns, or an int8 weight."""
    if weight.dtype == torch.int8:
        return torch.ops.aten._weight_int8pack_mm(x, weight, scale.to(x.dtype))
    rows = x.float().abs().amax(1, keepdim=True) / torch.finfo(weight.dtype).max
    return torch._scaled_mm((x.float() / rows).to(weight.dtype), weight.t(), rows, scale[None], out_dtype=x.dtype)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
def test_products_of_eight_bits(dtype: torch.dtype) -> None:
    x, scale = randn(max(BATCHES), WIDTH, dtype=torch.bfloat16).to(DEVICE), torch.linspace(0.001, 0.01, 1024).to(DEVICE)
    weight = (randn(1024, WIDTH, seed=1) * 30).clamp(-127, 127).to(dtype).to(DEVICE)
    run = torch.compile(product_of_eights, backend="batch_invariant", dynamic=True)
    whole = run(x, weight, scale)
    for m in BATCHES:
        assert_same_bits(run(x[:m].clone(), weight, scale), whole[:m], f"{m} rows")
    assert_same_bits(run(x.flip(0), weight, scale), whole.flip(0), "another order")
    # float8 of the rows has two digits; what is left is the error of bfloat16 results.
    expected = x.double() @ weight.double().t() * scale.double()
    assert relative_error(whole, expected) <= (0.04 if dtype != torch.int8 else 3e-3)


def test_products_of_int8_are_exact() -> None:
    a, b = (torch.randint(-128, 128, size, dtype=torch.int8, generator=torch.Generator().manual_seed(0)) for size in ((40, 200), (200, 24)))
    run = torch.compile(torch._int_mm, backend="batch_invariant", dynamic=True)
    for m in (1, 2, 17, 40):
        assert torch.equal(run(a[:m].to(DEVICE), b.to(DEVICE)).cpu(), torch._int_mm(a[:m], b))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_decode_is_prefill_through_blocks_too(dtype: torch.dtype) -> None:
    """One program with all keys, several that share them, and blocks of a cache: one order of the matrix units, or several."""
    length, block, ops = 700, 16, torch.ops.bi_inductor
    q, k, v = (randn(1, heads, length, 64, dtype=dtype, seed=heads + i).to(DEVICE) for i, heads in enumerate((8, 2, 2)))
    mask = torch.ones(length, length, dtype=torch.bool, device=DEVICE).tril()
    attend = torch.compile(lambda q, k, v, mask: ops.attention(q, k, v, mask), backend="batch_invariant", dynamic=False)
    whole = attend(q, k, v, mask)
    for rows in (slice(length - 1, length), slice(300, 309), slice(100, 200)):
        assert_same_bits(attend(q[:, :, rows], k, v, mask[rows]), whole[:, :, rows], f"queries {rows.start} to {rows.stop}")
    table = torch.randperm(-(-length // block), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    cache = torch.full([len(table), block, 2, 128], float("nan"), dtype=dtype, device=DEVICE)
    place = torch.arange(length, device=DEVICE)
    cache[table[place // block], place % block] = torch.cat([k, v], -1)[0].movedim(0, 1)
    paged = torch.compile(lambda *tensors: ops.paged_attention(*tensors, 0.125), backend="batch_invariant", dynamic=False)
    for first, last in ((0, length), (length - 1, length), (500, 640)):
        numbers = torch.tensor([0, last - first], device=DEVICE), torch.tensor([last], device=DEVICE)
        found = paged(q[0].movedim(0, 1)[first:last], cache, table[None], *numbers)
        assert_same_bits(found, whole[0].movedim(0, 1)[first:last], f"blocks, tokens {first} to {last}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_error_is_that_of_torch(name: str, dtype: torch.dtype) -> None:
    x = randn(33, WIDTH, dtype=dtype).cuda()
    given = parameters(x)
    exact = OPS[name](x.double(), *(parameter.double() for parameter in given))
    assert relative_error(compiled(name, x)(x), exact) <= 1.5 * max(relative_error(OPS[name](x, *given), exact), 2.5e-7)


@pytest.mark.parametrize("name", ["linear", "attention", "layer_norm"])
def test_streams_and_cuda_graphs(name: str) -> None:
    x = randn(17, WIDTH, dtype=torch.bfloat16).cuda()
    run = compiled(name, x)
    expected = run(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        beside = run(x)
    torch.cuda.synchronize()
    assert_same_bits(beside, expected, "another stream")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(x)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert_same_bits(captured, expected, "a CUDA graph")


def milliseconds(run: Callable[[], object]) -> float:
    """The median of 20 runs."""
    run()
    times = []
    for _ in range(20):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


@pytest.mark.parametrize("name", ["linear", "attention", "softmax", "rms_norm"])
def test_time_beside_stock(name: str) -> None:
    """Prints ratios; a machine's speed is nothing to assert."""
    for m in (1, 64, 1024):
        x = randn(m, WIDTH, dtype=torch.bfloat16).cuda()
        runs = [compiled(name, x), compiled(name, x, backend="inductor"), compiled(name, x, backend="eager")]
        times = [milliseconds(functools.partial(run, x)) for run in runs]
        print(f"{name}, {m} rows: ours / stock compiled {times[0] / times[1]:.2f}, ours / eager {times[0] / times[2]:.2f}")


def test_time_of_a_llamas_linears_beside_cublas() -> None:
    """Prints ratios and rates of the linears of Llama-3-8B in bfloat16, which docs/performance.md models."""
    product = torch.compile(functional.linear, backend="batch_invariant", dynamic=False)
    for linear, (n, k) in LINEARS.items():
        weight = randn(n, k, dtype=torch.bfloat16).to(DEVICE)
        for rows, m in ROWS.items():
            x = randn(m, k, dtype=torch.bfloat16, seed=1).to(DEVICE)
            ours, cublas = (milliseconds(functools.partial(run, x, weight)) for run in (product, functional.linear))
            rate, bandwidth = 2 * m * n * k / ours * 1e-9, 2 * (m * k + n * k + m * n) / ours * 1e-9
            print(f"{linear} ({n} x {k}), {rows}: ours / cuBLAS {ours / cublas:.2f}, {rate:.0f} TFLOP/s, {bandwidth:.2f} TB/s")


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=True)


def test_time_of_a_llamas_attention_beside_flash_attention() -> None:
    """Prints ratios and rates in bfloat16: a prompt, and one query of each request."""
    ours = torch.compile(attended, backend="batch_invariant", dynamic=False)
    for name, (requests, tokens) in REQUESTS.items():
        sizes = (HEADS, tokens), (KV_HEADS, KEYS), (KV_HEADS, KEYS)
        q, k, v = (torch.randn(requests, *size, HEAD_DIM, dtype=torch.bfloat16, device=DEVICE) for size in sizes)
        time = milliseconds(functools.partial(ours, q, k, v))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            flash = milliseconds(functools.partial(attended, q, k, v))
        pairs = requests * HEADS * tokens * (KEYS if tokens == 1 else (KEYS + 1) / 2)
        print(f"{name}: ours / flash attention {time / flash:.2f}, {4 * HEAD_DIM * pairs / time * 1e-9:.0f} TFLOP/s")
