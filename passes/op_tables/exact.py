"""Exact: the result is the same in whatever order the elements are visited (maxima, comparisons, sums of integers, stable sorts)."""

from __future__ import annotations

from bi_inductor.passes.op_tables.names import names

EXACT = names(
    "aten",
    """
        _int_mm _is_all_true _is_any_true _unique _unique2 all allclose amax amin aminmax any argmax argmin argsort bucketize
        count_nonzero cummax cummin equal fractional_max_pool2d fractional_max_pool3d gcd hash_tensor histc isin kthvalue max max_pool1d
        max_pool2d max_pool2d_with_indices max_pool3d_with_indices median min mode nanmedian searchsorted sort topk unique_consecutive
        unique_dim unique_dim_consecutive
        """,
) | names("prims", "_low_memory_max_pool_with_offsets _low_memory_max_pool_offsets_to_indices")

# Exact on integers and rewritten on floating point; of several elements for one place, the last one stays.
SCATTERS = names("aten", "scatter scatter_add scatter_reduce index_reduce index_put _unsafe_index_put")

# Sums that are exact on integers and rewritten on floating point.
SUMS = names("aten", "sum prod cumsum cumprod mm bmm addmm baddbmm mv dot vdot")

# Counting is exact; adding up weights is not, and has no template.
COUNTS = names("aten", "bincount histogram _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors")
