"""The operators ``torch.ops.bi_inductor.*``: one per meaning, each with a schema, a fake, a CPU implementation and autograd."""

from bi_inductor.operators import (
    attention,
    convolution,
    embedding,
    grouped_matmul,
    matmul,
    native_matmul,
    norms,
    one_sample,
    paged_attention,
    philox,
    reductions,
    sample_sum,
    scaled_matmul,
    scatter,
    softmax,
)

__all__ = [
    "attention",
    "convolution",
    "embedding",
    "grouped_matmul",
    "matmul",
    "native_matmul",
    "norms",
    "one_sample",
    "paged_attention",
    "philox",
    "reductions",
    "sample_sum",
    "scaled_matmul",
    "scatter",
    "softmax",
]
