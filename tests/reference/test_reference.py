"""The reference itself: is it accurate, does it keep the promises of docs/numerics.md, what does it do at the edges?

In which order it adds is checked in tests/bi_inductor/test_testing.py, where its accumulation trees are recovered.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests import reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
FLOATS = [torch.float32, torch.float64]
INTEGER_OF_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}
INF, NAN = math.inf, math.nan

# numpy's longdouble has 64 bits of precision on x86, enough to judge float64 by; elsewhere it may be float64 itself.
Exact = npt.NDArray[np.longdouble]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal shape, dtype and bits; every NaN equals every NaN."""
    if a.shape != b.shape or a.dtype != b.dtype or not torch.equal(a.isnan(), b.isnan()):
        return False
    integer = INTEGER_OF_SIZE[a.element_size()]
    return torch.equal(a.nan_to_num(0.0).view(integer), b.nan_to_num(0.0).view(integer)) and torch.equal(a.isinf(), b.isinf())


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact(x: torch.Tensor) -> Exact:
    return x.double().numpy().astype(np.longdouble)


def assert_accurate(actual: torch.Tensor, expected: Exact, rounding_steps: float, magnitude: Exact) -> None:
    """``actual`` is ``expected`` up to so many roundings of ``magnitude`` in the accumulation type, and one at the end."""
    accumulation = torch.finfo(reference.accumulation_dtype(actual.dtype))
    output = torch.finfo(actual.dtype)
    error = np.abs(exact(actual) - expected)
    allowed = rounding_steps * accumulation.eps / 2 * magnitude + output.eps / 2 * np.abs(expected) + output.tiny
    assert (error <= allowed).all(), f"off by {float((error / allowed).max()):.2f} of what is allowed"


def steps(n: int, lanes: int) -> float:
    """Roundings a term goes through in a lane sum."""
    return n / lanes + math.log2(lanes) + 1


# --- accuracy --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 300, 5), (1, 1, 1), (4, 17, 2)])
def test_matmul_accuracy(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, depth, columns = shape
    a, b, bias = (
        random(2, rows, depth, dtype=dtype),
        random(2, depth, columns, dtype=dtype),
        random(columns, dtype=dtype),
    )
    expected = (exact(a)[..., None] * exact(b)[:, None]).sum(axis=2)
    magnitude = np.abs(exact(a)[..., None] * exact(b)[:, None]).sum(axis=2)
    assert_accurate(reference.matmul(a, b), expected, steps(depth, 16), magnitude)
    assert_accurate(reference.matmul(a, b, alpha=-0.75), -0.75 * expected, steps(depth, 16) + 1, magnitude)
    assert_accurate(
        reference.matmul(a, b, bias, alpha=1.5, beta=0.5),
        1.5 * expected + 0.5 * exact(bias),
        steps(depth, 16) + 3,
        1.5 * magnitude + np.abs(exact(bias)),
    )
    assert same_bits(reference.matmul(a[1], b[1]), reference.matmul(a, b)[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reduction_accuracy(dtype: torch.dtype) -> None:
    x = random(4, 500, dtype=dtype) + 0.25
    e, n = exact(x), x.shape[1]
    assert_accurate(reference.reduce("sum", x, 1), e.sum(1), steps(n, 128), np.abs(e).sum(1))
    assert_accurate(reference.reduce("mean", x, 1), e.mean(1), steps(n, 128) + 1, np.abs(e).mean(1))
    near_one = (x / 32 + 1).to(dtype)
    product = exact(near_one).prod(1)
    assert_accurate(reference.reduce("prod", near_one, 1), product, n, np.abs(product))
    for correction in (0.0, 1.0, 2.5):
        q = ((e - e.mean(1, keepdims=True)) ** 2).sum(1)
        variance = q / (n - correction)
        var, std = (reference.reduce(op, x, 1, correction=correction) for op in ("var", "std"))
        assert_accurate(var, variance, 2 * steps(n, 128) + 6, variance)
        assert_accurate(std, np.sqrt(variance), steps(n, 128) + 4, np.sqrt(variance))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cumsum_accuracy(dtype: torch.dtype) -> None:
    x = random(3, 100, dtype=dtype)
    assert_accurate(reference.cumsum(x, 1), exact(x).cumsum(1), 100, np.abs(exact(x)).cumsum(1))
    products = exact(x).cumprod(1)
    assert_accurate(reference.cumprod(x, 1), products, 100, np.abs(products))
    logarithms = np.logaddexp.accumulate(exact(x), 1)
    assert_accurate(reference.logcumsumexp(x, 1), logarithms, 300, np.abs(logarithms) + 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_softmax_accuracy(dtype: torch.dtype) -> None:
    x = random(5, 300, dtype=dtype) * 3
    shifted = exact(x) - exact(x).max(1, keepdims=True)
    e = np.exp(shifted)
    total = e.sum(1, keepdims=True)
    steps_of_sum = steps(300, 128)
    # The rounding of x - m is an absolute error of the exponent, so a relative error of e.
    relative = steps_of_sum + 8 + np.abs(shifted)
    assert_accurate(reference.softmax(x, 1), e / total, 1, relative * e / total)
    log_softmax = shifted - np.log(total)
    assert_accurate(reference.log_softmax(x, 1), log_softmax, 1, steps_of_sum + 8 + np.abs(shifted) + np.abs(log_softmax))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("affine", ["both", "weight", "bias", "neither"])
def test_norm_accuracy(affine: str, dtype: torch.dtype) -> None:
    x = random(6, 8, 50, dtype=dtype) + 0.25
    weight = random(8, 50, dtype=dtype, seed=1) if affine in ("both", "weight") else None
    bias = random(8, 50, dtype=dtype, seed=2) if affine in ("both", "bias") else None
    w, b = (1.0 if weight is None else exact(weight)), (0.0 if bias is None else exact(bias))
    e = exact(x)
    accumulation = reference.accumulation_dtype(dtype)

    d = e - e.mean((1, 2), keepdims=True)
    rstd = 1 / np.sqrt((d**2).mean((1, 2), keepdims=True) + 1e-5)
    y, mean, saved_rstd = reference.layer_norm(x, (8, 50), weight, bias)
    assert_accurate(y, d * rstd * w + b, 24, np.abs(e) * rstd * np.abs(w) + np.abs(d * rstd * w) + np.abs(b) + 1)
    assert mean.dtype == saved_rstd.dtype == accumulation and mean.shape == saved_rstd.shape == (6, 1, 1)
    assert_accurate(mean, e.mean((1, 2), keepdims=True), 16, np.abs(e).mean((1, 2), keepdims=True))
    assert_accurate(saved_rstd, rstd, 16, rstd)

    if affine in ("weight", "neither"):
        rstd = 1 / np.sqrt((e**2).mean((1, 2), keepdims=True) + 1e-6)
        y, saved_rstd = reference.rms_norm(x, (8, 50), weight, eps=1e-6)
        assert_accurate(y, e * rstd * w, 16, np.abs(e * rstd * w))
        assert_accurate(reference.mean_square_norm(x, (8, 50), weight, 1e-6), e * rstd * w, 16, np.abs(e * rstd * w))
        assert saved_rstd.shape == (6, 1, 1)
        assert_accurate(saved_rstd, rstd, 16, rstd)

    channel_weight = None if weight is None else weight[:, 0]
    channel_bias = None if bias is None else bias[:, 0]
    w, b = (1.0 if weight is None else exact(weight)[:, :1]), (0.0 if bias is None else exact(bias)[:, :1])
    groups = e.reshape(6, 2, 200)
    d = groups - groups.mean(2, keepdims=True)
    rstd = 1 / np.sqrt((d**2).mean(2, keepdims=True) + 1e-5)
    normalised = (d * rstd).reshape(e.shape)
    y, mean, saved_rstd = reference.group_norm(x, 2, channel_weight, channel_bias)
    assert_accurate(y, normalised * w + b, 24, (np.abs(e) + np.abs(normalised) + 1) * (np.abs(w) + np.abs(b) + 1))
    assert mean.shape == saved_rstd.shape == (6, 2) and mean.dtype == accumulation
    assert_accurate(mean, groups.mean(2), 16, np.abs(groups).mean(2))
    assert_accurate(saved_rstd, rstd[..., 0], 16, rstd[..., 0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
def test_attention_accuracy(mask: str, dtype: torch.dtype) -> None:
    batch, heads, kv_heads, queries, keys, size = 2, 4, 2, 5, 40, 24
    query = random(batch, heads, queries, size, dtype=dtype)
    key = random(batch, kv_heads, keys, size, dtype=dtype, seed=1)
    value = random(batch, kv_heads, keys, size, dtype=dtype, seed=2)
    bool_mask = random(batch, 1, queries, keys, seed=3) > 0
    float_mask = random(heads, queries, keys, dtype=dtype, seed=4)
    given = {"bool": bool_mask, "float": float_mask}.get(mask)
    out, lse = reference.attention(query, key, value, given, is_causal=mask == "causal")

    # Head h reads key head h // (H / Hk): two query heads share a key head, neighbours in h.
    k, v = (exact(x).repeat(2, axis=1) for x in (key, value))
    s = (exact(query)[:, :, :, None] * k[:, :, None]).sum(-1) / np.sqrt(np.longdouble(size))
    if mask == "float":
        s = s + exact(float_mask)
    if mask == "bool":
        s = np.where(bool_mask.numpy(), s, -np.inf)
    if mask == "causal":
        s = np.where(np.tri(queries, keys, dtype=bool), s, -np.inf)
    m = s.max(-1, keepdims=True)
    e = np.exp(s - m)
    z = e.sum(-1, keepdims=True)
    expected = ((e / z)[..., None] * v[:, :, None]).sum(3)
    magnitude = ((e / z)[..., None] * np.abs(v[:, :, None])).sum(3)
    assert_accurate(out, expected, 120, magnitude)  # scores of up to 10 are rounded before exp: 10 units of e, each way
    assert lse.dtype == reference.accumulation_dtype(dtype)
    assert_accurate(lse, (m + np.log(z))[..., 0], 60, 1 + np.abs(m[..., 0]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embedding_backward_accuracy(dtype: torch.dtype) -> None:
    grad, index = (
        random(4, 30, 7, dtype=dtype),
        torch.randint(0, 9, (4, 30), generator=torch.Generator().manual_seed(0)),
    )
    expected, magnitude = np.zeros((10, 7), np.longdouble), np.zeros((10, 7), np.longdouble)
    np.add.at(expected, index.numpy(), exact(grad))
    np.add.at(magnitude, index.numpy(), np.abs(exact(grad)))
    assert_accurate(reference.embedding_backward(grad, index, 10), expected, 30, magnitude)
    expected[3] = 0
    assert_accurate(reference.embedding_backward(grad, index, 10, padding_idx=3), expected, 30, magnitude)


def test_exp_accuracy() -> None:
    bits = torch.randint(0, 2**32, (500_000,), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    any_magnitude = bits.view(torch.float32)
    x = torch.cat([torch.linspace(-87.33654, 88.37626, 1_000_001), any_magnitude[any_magnitude.abs() < 87.3]])
    assert ulps(reference.exp(x), np.exp(exact(x)), torch.float32) <= 1.5

    near_zero = torch.logspace(-320, 2, 20_001, dtype=torch.float64)
    x = torch.cat([torch.linspace(-708.39, 709.78, 1_000_001, dtype=torch.float64), near_zero, -near_zero])
    assert ulps(reference.exp(x), np.exp(exact(x)), torch.float64) <= 1.5


def ulps(actual: torch.Tensor, expected: Exact, dtype: torch.dtype) -> float:
    """The largest error in units of the last place of the expected value."""
    info = torch.finfo(dtype)
    exponent = np.floor(np.log2(np.maximum(expected, info.tiny)))
    return float((np.abs(exact(actual) - expected) / (info.eps * np.exp2(exponent))).max())


# --- section 2: zeros and schedules ----------------------------------------------------------------------------------

PADDINGS = [1, 2, 3, 5, 8, 15, 16, 17, 31, 64, 100, 127, 128, 129, 200]


def rows_of_every_kind(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows [k, n]: plain, cancelling over many magnitudes, huge, tiny, zeros of both signs, infinite, NaN."""
    plain = random(n, dtype=dtype)
    wide = plain * torch.logspace(-12, 12, n, dtype=dtype)[torch.randperm(n, generator=torch.Generator().manual_seed(1))]
    subnormal = (plain * torch.finfo(dtype).tiny / 8).to(dtype)
    zeros = torch.where(plain > 0, 0.0, -0.0).to(dtype)
    infinite, not_a_number = plain.clone(), plain.clone()
    infinite[n // 2], not_a_number[n // 3] = INF, NAN
    return torch.stack([plain, wide, plain * 1e30, subnormal, zeros, -torch.zeros_like(plain), infinite, not_a_number])


def padded(x: torch.Tensor, before: int, after: int, value: float = 0.0) -> torch.Tensor:
    return torch.nn.functional.pad(x, (before, after), value=value)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("n", [1, 16, 90, 300])
def test_padding_with_zeros_changes_no_sum(n: int, dtype: torch.dtype) -> None:
    x = rows_of_every_kind(n, dtype)
    total = reference.reduce("sum", x, 1)
    product = reference.reduce("prod", x, 1)
    for padding in PADDINGS:
        for before, after in ((padding, 0), (0, padding), (padding, 3)):
            for zero in (0.0, -0.0):
                assert same_bits(reference.reduce("sum", padded(x, before, after, zero), 1), total), (before, after)
            assert same_bits(reference.reduce("prod", padded(x, before, after, 1.0), 1), product), (before, after)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("n", [1, 16, 90])
def test_padding_with_zeros_changes_no_matmul(n: int, dtype: torch.dtype) -> None:
    a = rows_of_every_kind(n, dtype)
    b = random(n, 3, dtype=dtype, seed=5)
    b[:, 2] *= torch.finfo(dtype).tiny  # products that underflow
    expected = reference.matmul(a, b)
    for padding in PADDINGS:
        for before, after in ((padding, 0), (0, padding), (padding, 3)):
            padded_b = padded(b.T, before, after, -0.0).T
            assert same_bits(reference.matmul(padded(a, before, after), padded_b), expected), (before, after)


def test_step_three_turns_minus_zero_into_plus_zero() -> None:
    """A product that underflows leaves -0 in its lane; with -0 in all 16, only step 3 makes the sum +0."""
    tiny = torch.finfo(torch.float32).tiny
    a, b = torch.full((1, 16), tiny), torch.full((16, 1), -tiny)
    for padding in [0, *PADDINGS]:
        for before, after in ((padding, 0), (0, padding)):
            out = reference.matmul(padded(a, before, after), padded(b.T, before, after).T)
            assert same_bits(out, torch.zeros(1, 1))


def test_cumsum_of_float32_is_a_chain_of_float64() -> None:
    x = random(3, 300)
    assert same_bits(reference.cumsum(x, 1), reference.cumsum(x.double(), 1).float())
    assert not same_bits(reference.cumsum(x, 1), torch.stack(list(itertools.accumulate(x.unbind(1))), 1))


def test_cumsum_and_embedding_start_from_plus_zero() -> None:
    assert same_bits(reference.cumsum(torch.tensor([-0.0, -0.0]), 0), torch.zeros(2))
    grad = torch.full((2, 1), -0.0)
    assert same_bits(reference.embedding_backward(grad, torch.tensor([0, 0]), 2), torch.zeros(2, 1))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("n", [1, 127, 128, 129, 1000])
def test_vectors_of_lanes_give_the_bits_of_the_loop(n: int, dtype: torch.dtype) -> None:
    """The same chains as whole-vector additions: the other schedule that section 2 allows, written with torch."""
    x = rows_of_every_kind(n, dtype)
    blocks = padded(x, 0, -n % 128).reshape(len(x), -1, 128)
    lanes = torch.zeros(len(x), 128, dtype=dtype)
    for block in range(blocks.shape[1]):
        lanes = lanes + blocks[:, block]
    while lanes.shape[1] > 1:
        lanes = lanes[:, : lanes.shape[1] // 2] + lanes[:, lanes.shape[1] // 2 :]
    assert same_bits(reference.reduce("sum", x, 1), lanes[:, 0] + 0.0)


def test_products_are_fused() -> None:
    """(1 + 2^-12)^2 - (1 + 2^-11) is 2^-24 with one rounding and 0 with two."""
    a, b = torch.zeros(1, 17), torch.zeros(17, 1)
    a[0, 0], b[0, 0] = -(1 + 2.0**-11), 1.0
    a[0, 16], b[16, 0] = 1 + 2.0**-12, 1 + 2.0**-12
    assert reference.matmul(a, b).item() == 2.0**-24
    a[0, 16], b[16, 0] = 0.0, 0.0
    a[0, 1], b[1, 0] = 1 + 2.0**-12, 1 + 2.0**-12  # another lane: rounded by itself
    assert reference.matmul(a, b).item() == 0.0


def test_several_dims_are_read_in_row_major_order() -> None:
    x = random(3, 4, 5, 6)
    for op in ("sum", "mean", "prod", "var", "std"):
        rows = reference.reduce(op, x.permute(0, 2, 1, 3).reshape(15, 24), 1)
        assert same_bits(reference.reduce(op, x, [1, 3]), rows.reshape(3, 5))
        assert same_bits(reference.reduce(op, x, (-1, 1), keepdim=True), rows.reshape(3, 1, 5, 1))
        assert same_bits(reference.reduce(op, x), reference.reduce(op, x.flatten(), 0))


def test_strides_do_not_matter() -> None:
    x = random(4, 6, 50)
    views = [x, x.transpose(0, 2).contiguous().transpose(0, 2), torch.stack([x, -x], -1)[..., 0], x.flip(0).flip(0)]
    functions: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda v: reference.reduce("sum", v, [0, 2]),
        lambda v: reference.softmax(v, 1),
        lambda v: reference.log_softmax(v, 0),
        lambda v: reference.cumsum(v, 0),
        lambda v: reference.layer_norm(v, (6, 50), v[0], v[1])[0],
        lambda v: reference.rms_norm(v, (50,), v[0, 0])[0],
        lambda v: reference.group_norm(v, 3, v[0, :, 0], v[1, :, 1])[0],
        lambda v: reference.matmul(v, v.transpose(1, 2)),
        lambda v: reference.attention(v[None], v[None], v[None])[0],
        lambda v: reference.embedding_backward(v, torch.arange(24).reshape(4, 6) % 5, 5),
        reference.exp,
    ]
    for fn in functions:
        for view in views[1:]:
            assert same_bits(fn(view), fn(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_are_rounded_once_at_the_end(dtype: torch.dtype) -> None:
    a, b, bias = random(5, 70, dtype=dtype), random(70, 4, dtype=dtype), random(4, dtype=dtype)
    in_float32 = reference.matmul(a.float(), b.float(), bias.float(), alpha=1.25)
    assert same_bits(reference.matmul(a, b, bias, alpha=1.25), in_float32.to(dtype))
    for fn in (lambda x: reference.softmax(x, 1), reference.exp):
        assert same_bits(fn(a), fn(a.float()).to(dtype))
    sums = torch.zeros(5)
    for i in range(a.shape[1]):
        sums = sums + a[:, i].float()
        assert same_bits(reference.cumsum(a, 1)[:, i], sums.to(dtype))
    assert same_bits(reference.layer_norm(a, (70,))[0], reference.layer_norm(a.float(), (70,))[0].to(dtype))


# --- sections 4 to 8: the formulas, spelled with whole tensors ---------------------------------------------------------
# Elementwise +, -, *, / of torch round once, so formulas made of them have the bits of the scalar loops. Not so its sqrt:
# builds with MKL call a vector library that is off by one in the last place for one number in six.


def correctly_rounded_sqrt(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.sqrt(x.numpy()))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norms_are_made_of_the_stated_steps(dtype: torch.dtype) -> None:
    x, weight, bias = random(7, 333, dtype=dtype) * 3 + 1, random(333, dtype=dtype, seed=1), random(333, dtype=dtype, seed=2)
    d = x - reference.reduce("mean", x, 1, keepdim=True)
    rstd = reference.rms_norm(d, (333,))[1]
    var, std = (reference.reduce(op, x, 1, keepdim=True, correction=0) for op in ("var", "std"))
    if dtype == torch.float64:  # var is fl(q / n)
        assert same_bits(rstd, 1 / correctly_rounded_sqrt(var + 1e-5))
        assert same_bits(std, correctly_rounded_sqrt(var))
    else:
        wide = reference.reduce("var", x.double(), 1, keepdim=True, correction=0)
        assert same_bits(var, wide.float()) and same_bits(std, correctly_rounded_sqrt(wide).float())
    y = d * rstd
    assert same_bits(reference.layer_norm(x, (333,))[2], rstd)
    assert same_bits(reference.layer_norm(x, (333,))[0], y)
    assert same_bits(reference.layer_norm(x, (333,), weight)[0], y * weight)
    assert same_bits(reference.layer_norm(x, (333,), None, bias)[0], y + bias)
    assert same_bits(reference.group_norm(x.reshape(1, 7, 333), 7)[0], y.reshape(1, 7, 333))
    both = reference.layer_norm(x, (333,), weight, bias)[0]
    if dtype == torch.float32:  # a float64 holds the product exactly
        assert same_bits(both, (y.double() * weight.double() + bias.double()).float())
    grouped = reference.group_norm(x.reshape(1, 7, 333), 7, weight[:7])[0]
    assert same_bits(grouped, (y * weight[:7, None]).reshape(1, 7, 333))

    rstd = reference.rms_norm(x, (333,))[1]
    assert same_bits(reference.rms_norm(x, (333,), weight)[0], (x * rstd) * weight)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax_is_made_of_the_stated_steps(dtype: torch.dtype) -> None:
    x = random(7, 333, dtype=dtype) * 3
    e = reference.exp(x - x.amax(1, keepdim=True))
    assert same_bits(reference.softmax(x, 1), e / reference.reduce("sum", e, 1, keepdim=True))
    # (x - m) - log(s), not x - (m + log(s)), which would lose the places that 1000 takes.
    log_half = reference.log_softmax(torch.full((1, 2), 1000.0, dtype=dtype), 1)
    assert same_bits(log_half, torch.full((1, 2), -math.log(2), dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_attention_is_made_of_the_stated_steps(dtype: torch.dtype) -> None:
    query, key, value = (random(3, 40, 24, dtype=dtype, seed=seed) for seed in range(3))
    mask = random(40, 40, dtype=dtype, seed=3)
    s = reference.matmul(query, key.transpose(1, 2)) * 0.3 + mask
    m = s.amax(2, keepdim=True)
    e = reference.exp(s - m)
    z = reference.reduce("sum", e, 2, keepdim=True)
    out, lse = reference.attention(query[None], key[None], value[None], mask, scale=0.3)
    assert same_bits(out[0], reference.matmul(e, value) / z)
    uniform = reference.attention(query[None] * 0, key[None], value[None])[1]  # m = 0, z = 40
    assert same_bits(uniform, torch.full_like(lse, math.log(40)))


# --- section 8: padding, chunks, decode ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", ["bool", "float"])
def test_masked_keys_reach_nothing(form: str, dtype: torch.dtype) -> None:
    query, key, value = (random(1, 2, length, 8, dtype=dtype, seed=length) for length in (3, 21, 22))
    value = value[:, :, :21]
    out, lse = reference.attention(query, key, value)
    for before, after in [(1, 0), (0, 1), (7, 2), (16, 0), (100, 40), (128, 1), (129, 0)]:
        keep = torch.tensor([False] * before + [True] * 21 + [False] * after)
        mask = keep if form == "bool" else torch.where(keep, 0.0, -INF).to(dtype)
        for garbage in (0.0, 3.0, INF, NAN):
            padded_key, padded_value = (torch.nn.functional.pad(x, (0, 0, before, after), value=garbage) for x in (key, value))
            padded_out, padded_lse = reference.attention(query, padded_key, padded_value, mask)
            assert same_bits(padded_out, out) and same_bits(padded_lse, lse), (before, after, garbage)


def test_prefill_chunks_and_decode_agree() -> None:
    query, key, value = (random(2, 4, 40, 8, seed=seed) for seed in range(3))
    whole, whole_lse = reference.attention(query, key, value, is_causal=True)
    causal = torch.ones(40, 40, dtype=torch.bool).tril()
    for start, end in [(0, 7), (7, 40), (39, 40), (17, 18)]:
        chunk = (query[:, :, start:end], key[:, :, :end], value[:, :, :end])
        out, lse = reference.attention(*chunk, causal[start:end, :end])
        assert same_bits(out, whole[:, :, start:end]) and same_bits(lse, whole_lse[:, :, start:end])


def test_attention_rows_without_an_answer() -> None:
    query, key, value = random(1, 1, 2, 4), random(1, 1, 3, 4), random(1, 1, 3, 4)
    mask = torch.tensor([[False, False, False], [True, False, True]])
    out, lse = reference.attention(query, key, value, mask)
    assert same_bits(out[0, 0, 0], torch.zeros(4)) and lse[0, 0, 0] == -INF and out[0, 0, 1].isfinite().all()

    out, lse = reference.attention(torch.ones(1, 1, 1, 4), torch.full((1, 1, 3, 4), -INF), value)
    assert out.isnan().all() and lse.isnan().all()

    key[0, 0, 1, 0] = NAN
    out, _ = reference.attention(query, key, value)
    assert out.isnan().all()
    out, _ = reference.attention(query, key, value, torch.tensor([True, False, True]))
    assert out.isfinite().all()

    out, lse = reference.attention(query, key[:, :, :0], value[:, :, :0])
    assert same_bits(out, torch.zeros(1, 1, 2, 4)) and (lse == -INF).all()


def test_grouped_heads() -> None:
    query, key, value = random(2, 6, 3, 8), random(2, 2, 9, 8, seed=1), random(2, 2, 9, 5, seed=2)
    out, lse = reference.attention(query, key, value)
    repeated = reference.attention(query, key.repeat_interleave(3, 1), value.repeat_interleave(3, 1))
    assert same_bits(out, repeated[0]) and same_bits(lse, repeated[1])


# --- special values and edges ----------------------------------------------------------------------------------------


def test_exp_special_values() -> None:
    x = torch.tensor([0.0, -0.0, INF, -INF, NAN, 1e-45, -1e-45, -87.4, 88.4, 3e38, -3e38])
    expected = torch.tensor([1.0, 1.0, INF, 0.0, NAN, 1.0, 1.0, 0.0, INF, INF, 0.0])
    assert same_bits(reference.exp(x), expected)
    below, above = torch.tensor(-87.33654), torch.tensor(88.37626)
    assert reference.exp(below) > 0 and reference.exp(below.nextafter(torch.tensor(-INF))) == 0
    assert reference.exp(above).isfinite() and reference.exp(above.nextafter(torch.tensor(INF))) == INF

    x = torch.tensor([0.0, -0.0, INF, -INF, NAN, -708.4, 709.79, 709.78, -708.39], dtype=torch.float64)
    y = reference.exp(x)
    assert same_bits(y[:7], torch.tensor([1.0, 1.0, INF, 0.0, NAN, 0.0, INF], dtype=torch.float64))
    assert y[7].isfinite() and y[8] > 0


def test_softmax_special_rows() -> None:
    x = torch.tensor([[-INF, -INF, -INF], [NAN, 0.0, 1.0], [INF, 0.0, 1.0], [-INF, 2.0, -INF], [-200.0, 0.0, -300.0]])
    y, log_y = reference.softmax(x, 1), reference.log_softmax(x, 1)
    assert y[:3].isnan()[[0, 1, 2], 0].all() and y[:2].isnan().all() and log_y[:2].isnan().all()
    assert same_bits(y[3:], torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]))
    assert same_bits(log_y[3:], torch.tensor([[-INF, 0.0, -INF], [-200.0, 0.0, -300.0]]))
    assert reference.softmax(torch.empty(3, 0), 1).shape == (3, 0)
    assert reference.softmax(torch.tensor(3.0), 0).item() == 1.0


def test_empty_and_short_reductions() -> None:
    empty = torch.empty(2, 0)
    assert same_bits(reference.reduce("sum", empty, 1), torch.zeros(2))
    assert same_bits(reference.reduce("prod", empty, 1), torch.ones(2))
    assert reference.reduce("mean", empty, 1).isnan().all()
    assert reference.reduce("sum", empty, 0).shape == (0,)
    one = torch.tensor([[3.0]])
    assert reference.reduce("var", one, 1).isnan().all()  # 0 / 0
    assert same_bits(reference.reduce("var", one, 1, correction=0), torch.zeros(1))
    pair = torch.tensor([1.0, 3.0])
    assert reference.reduce("var", pair, 0, correction=2).item() == INF
    assert reference.reduce("std", pair, 0, correction=5).item() == INF  # max(0, n - c)
    assert reference.reduce("sum", torch.tensor(-2.0), 0).item() == -2.0


def test_matmul_edges() -> None:
    a, b, bias = random(3, 5), random(5, 4), torch.full((4,), NAN)
    assert same_bits(reference.matmul(a, b, bias, alpha=2.0, beta=0.0), reference.matmul(a, b, alpha=2.0))
    assert reference.matmul(a, b, bias).isnan().all()
    empty = reference.matmul(torch.empty(3, 0), torch.empty(0, 4))
    assert same_bits(empty, torch.zeros(3, 4))
    assert same_bits(reference.matmul(torch.empty(2, 3, 0), torch.empty(2, 0, 4), torch.ones(4)), torch.ones(2, 3, 4))
    assert reference.matmul(torch.empty(0, 5), b).shape == (0, 4)
    large = torch.full((1, 2), 300.0, dtype=torch.float16)
    assert reference.matmul(large, large.T).item() == INF  # 180000 overflows float16, once, at the end
    assert reference.matmul(large, torch.tensor([[300.0], [-300.0]], dtype=torch.float16)).item() == 0.0
    assert reference.matmul(torch.tensor([[0.0]]), torch.tensor([[INF]])).isnan().all()


def test_alpha_and_bias_round_separately() -> None:
    """fl(fl(alpha * acc) + fl(beta * bias)): no fused step."""
    third = torch.tensor([[1 / 3]])
    bias = torch.tensor([[-1.0]])
    expected = torch.tensor(3.0) * third + torch.tensor(1.0) * bias  # 3 * fl(1/3) rounds to 1
    out = reference.matmul(third, torch.ones(1, 1), bias, alpha=3.0)
    assert same_bits(out, expected) and out.item() == 0.0


def test_bad_arguments_are_refused() -> None:
    x = random(3, 4)
    with pytest.raises(TypeError):
        reference.reduce("sum", torch.ones(3, dtype=torch.int64), 0)
    with pytest.raises(TypeError):
        reference.matmul(x, random(4, 2, dtype=torch.float64))
    with pytest.raises(ValueError):
        reference.matmul(x, x)
    with pytest.raises(ValueError):
        reference.reduce("median", x, 0)
    with pytest.raises(IndexError):
        reference.softmax(x, 2)
    with pytest.raises(ValueError):
        reference.layer_norm(x, (3,))
    with pytest.raises(ValueError):
        reference.group_norm(x, 3)
    with pytest.raises(ValueError):
        reference.attention(x, x, x)
    with pytest.raises(IndexError):
        reference.embedding_backward(x, torch.tensor([0, 1, 5]), 5)
