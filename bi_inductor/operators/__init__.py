"""The operators ``torch.ops.bi_inductor.*``: one per meaning, each with a schema, a fake, a CPU implementation and autograd."""

from bi_inductor.operators import attention, embedding, matmul, norms, reductions, softmax

__all__ = ["attention", "embedding", "matmul", "norms", "reductions", "softmax"]
