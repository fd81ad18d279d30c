"""Data movement: what makes, views, copies or picks elements without arithmetic, and what checks or asks without giving a value."""

from __future__ import annotations

from bi_inductor.passes.op_tables.names import names

MOVEMENT = (
    names(
        "aten",
        """
        _assert_async _assert_scalar _assert_tensor_metadata _efficientzerotensor _foreach_clone _foreach_copy _functional_assert_async
        _functional_assert_scalar _functional_sym_constrain_range _functional_sym_constrain_range_for_size _has_same_storage_numel
        _lazy_clone _linalg_check_errors _local_scalar_dense _make_dep_token _new_zeros_with_same_feature_meta _pin_memory _reshape_alias
        _reshape_alias_copy _reshape_copy _resize_output _to_copy _unsafe_index _unsafe_masked_index _unsafe_view alias arange as_strided
        as_strided_copy as_strided_scatter cat clone constant_pad_nd copy copy_ detach detach_copy diagonal diagonal_copy diagonal_scatter
        embedding empty empty_like empty_permuted empty_strided expand expand_copy eye fill flip from_file full full_like gather index
        index_select is_pinned is_same_size is_set_to item lift_fresh lift_fresh_copy linspace lu_unpack masked_scatter
        masked_scatter_backward masked_select movedim narrow new_empty new_empty_strided new_full new_ones new_zeros nonzero
        nonzero_static ones ones_like permute real reflection_pad1d reflection_pad2d repeat repeat_interleave replication_pad1d
        replication_pad2d reshape resize resolve_conj resolve_neg roll scalar_tensor select select_copy select_scatter set set_ slice
        slice_copy slice_inverse slice_scatter split split_copy split_with_sizes squeeze stack sym_numel sym_size sym_storage_offset
        sym_stride t transpose tril tril_indices triu triu_indices unbind unfold unsqueeze view view_as_complex_copy view_as_real
        view_as_real_copy zeros zeros_like
        """,
    )
    | names("prims", "broadcast_in_dim rev iota device_put empty_strided view_of inductor_force_stride_order scalar_tensor")
    # What orders assertions.
    | names("prims", "_make_token _sink_tokens")
    # What waits for a collective.
    | names("_c10d_functional", "wait_tensor")
    | names("inductor", "resize_storage_bytes_ _alloc_from_pool _reinterpret_tensor")
)

# Storing at indices is data movement; adding to what is there is one of the scatters.
OVERWRITES = names("aten", "index_put _unsafe_index_put")

# Moves complex numbers as they are.
CHOICES = names("aten", "where complex view_as_complex")
