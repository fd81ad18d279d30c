"""The numerics of each operator of bi_inductor in a few words, with the section of docs/numerics.md that defines it.

The quotes are in that page word for word; a test compares. They stand here too because an installed package has no docs folder.
"""

from __future__ import annotations

import dataclasses

from bi_inductor.operators.one_sample import ONE_SAMPLE_OPS

MATMUL_LANES, SUM_LANES = 16, 128


@dataclasses.dataclass(frozen=True)
class Numerics:
    """How one operator's elements are defined.

    Attributes:
        section: number of the section of docs/numerics.md.
        quote: the words there that matter most.
        kernel: the kernel of the template library that computes it; "" where that is torch's own.
        lanes: number of lanes of its sums, by what is summed.
    """

    section: int
    quote: str
    kernel: str
    lanes: tuple[tuple[str, int], ...] = ()


_LAYER_NORM = "`rstd = fl(1 / sqrt(fl(fl(q/n) + eps)))`; `y = fl(d * rstd)`"
_ATTENTION = "Masked keys are skipped: whatever they hold (NaN, inf) reaches nothing."
_SUM = (("terms", SUM_LANES),)

NUMERICS: dict[str, Numerics] = {
    "matmul": Numerics(
        3, "`acc = ` lane sum, `L = 16`, of `a[m,k]*b[k,n]` over `k` (fma chains).", "matmul", (("products", MATMUL_LANES),)
    ),
    "grouped_matmul": Numerics(
        3, "each group's rows, columns or terms as a `mm` of that group alone", "grouped_matmul", (("products", MATMUL_LANES),)
    ),
    "native_matmul": Numerics(
        3, "`acc = ` native sum of `a[m,k]*b[k,n]` over `k`, `L = 16`.", "native_matmul", (("pairs of products", MATMUL_LANES),)
    ),
    "native_grouped_matmul": Numerics(
        3, "`acc = ` native sum of `a[m,k]*b[k,n]` over `k`, `L = 16`.", "native_grouped_matmul", (("pairs of products", MATMUL_LANES),)
    ),
    "convolution": Numerics(
        3, "`k` the row-major index over (channel within the group, kernel position)", "convolution", (("products", MATMUL_LANES),)
    ),
    "scaled_matmul": Numerics(
        12,
        "`acc` is the matmul family's lane sum over `k` of products with the weight as the numbers it stands for",
        "matmul",
        (("products", MATMUL_LANES),),
    ),
    "sum": Numerics(4, "`round(S(x))`", "reduce_sum", _SUM),
    "mean": Numerics(4, "`round(fl(S(x) / n))`", "reduce_sum", _SUM),
    "prod": Numerics(4, "lanes and fold as in section 2 with `*` for `+`, lanes starting at 1, no step 3; rounded", "reduce_prod", _SUM),
    "var": Numerics(4, "`m = fl(S(x)/n)`; `d = fl(x - m)`; `q` = lane sum of the products `d*d` (fma chains)", "reduce_var", _SUM),
    "std": Numerics(4, "`round(sqrt(v))`, `v` the unrounded `var`", "reduce_var", _SUM),
    "cumsum": Numerics(4, "one chain in index order: `c = +0`; `c = c + x[i]`, rounded to float64 for float32 and float64", "cumsum"),
    "cumprod": Numerics(4, "one chain: `c = 1`; `c = c * x[i]`, kept and rounded as in `cumsum`", "cumsum"),
    "logcumsumexp": Numerics(4, "one chain: `c = -inf`; `c = a + log1p(exp(b - a))`", "cumsum"),
    "softmax": Numerics(6, "`softmax[i] = round(fl(e[i] / s))`", "softmax", (("denominator", SUM_LANES),)),
    "log_softmax": Numerics(6, "`log_softmax[i] = round(fl(fl(x[i] - m) - log(s)))`", "softmax", (("denominator", SUM_LANES),)),
    "layer_norm": Numerics(7, _LAYER_NORM, "norm", _SUM),
    "layer_norm_statistics": Numerics(7, "Statistics are `m` and `rstd` in the accumulation type", "norm", _SUM),
    "rms_norm": Numerics(7, "`rms_norm`: `q` = lane sum of products `x*x`", "norm", _SUM),
    "rms_norm_statistics": Numerics(7, "`rms_norm`: `q` = lane sum of products `x*x`", "norm", _SUM),
    "mean_square_norm": Numerics(7, "`q = S(fl(x*x))`, `y = fl(x * fl(1 / sqrt(fl(fl(q/n) + eps))))`", "mean_square_norm", _SUM),
    "group_norm": Numerics(7, "`m`, `q`, `rstd` as in layer_norm over the group in row-major order", "group_norm", _SUM),
    "group_norm_statistics": Numerics(7, "`m`, `q`, `rstd` as in layer_norm over the group in row-major order", "group_norm", _SUM),
    "attention": Numerics(
        8, _ATTENTION, "attention", (("scores", MATMUL_LANES), ("weighted values", MATMUL_LANES), ("denominator", SUM_LANES))
    ),
    "attention_lse": Numerics(
        8, "The saved statistic is `lse = fl(m + log(z))`", "attention", (("scores", MATMUL_LANES), ("denominator", SUM_LANES))
    ),
    "paged_attention": Numerics(
        8,
        "each request by itself is `attention` of its last queries over all of its keys in order",
        "paged_attention",
        (("scores", MATMUL_LANES), ("weighted values", MATMUL_LANES), ("denominator", SUM_LANES)),
    ),
    "embedding_backward": Numerics(9, "is that sum from `+0` over the positions `i` with `index[i] == v`", "embedding_backward"),
    "philox": Numerics(14, "ten rounds of Philox 4x32 on 32-bit words", ""),
    "scatter": Numerics(9, "one chain over the elements `x` of `src` that go there, in ascending position along the dim", "scatter"),
    "sample_sum": Numerics(13, "the sum of `2^k` samples that start at a multiple of `2^k` is the sum of its two halves", "sample_sum"),
}

# Operators that run torch's kernel have the name of the op of torch that they stand for.
NUMERICS |= {op.overloadpacket.__name__: Numerics(11, "torch's own kernel gives for one matrix", "") for op in ONE_SAMPLE_OPS}

# What holds for a whole class of nodes.
POINTWISE = Numerics(10, "each op rounds to its own dtype as eager does, no contraction, signed zeros kept", "")
