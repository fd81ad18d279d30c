"""Unsupported: what may give a sample other bits in another batch and has no template, by the reason. An op that no file of the table names
is refused like these.
"""

from __future__ import annotations

from bi_inductor.passes.op_tables.names import names

ELEMENTWISE_OF_ATEN = "Inductor calls ATen's elementwise kernel, whose vector body and tail round differently"
SUMS_WITHOUT_TEMPLATE = "a sum whose order follows sizes and threads, and no template takes its place"
LINEAR_ALGEBRA = "a LAPACK routine chosen by sizes and threads; not run one sample at a time yet"
QUANTISED = "quantised tensors and integer kernels"
SCALED = "float8 is supported with float32 scales of one element, or of [m, 1] and [1, n], and no scale of the result"
INT8_WEIGHTS = "an int8 weight is supported beside a float and float scales"
SPARSE = "sparse tensors"
NESTED = "nested tensors, whose batch is no dim"
RECURRENT = "a whole recurrent network in one kernel; its steps are supported one by one"
FUSED_OPTIMIZERS = "a whole optimizer step in one kernel of ATen"
OTHER_KERNELS = "one of torch's kernels for an op that has a class under another name; Inductor never calls it on a CPU"
FORWARD_MODE = "a part of forward-mode differentiation"
TESTS_OF_TORCH = "exists for torch's own tests"
COLLECTIVES = "a collective: in which order ranks are added, and what they hold, is not defined here"
SCALARS = "an overload reads a tensor of scalars while the graph is traced"
PRIMITIVES = "a part of torch._refs that Inductor's decompositions do not use"

UNSUPPORTED: dict[str, set[str]] = {
    ELEMENTWISE_OF_ATEN: names(
        "aten",
        """
        __lshift__ __rshift__ _add_relu _neg_view_copy hardshrink_backward softshrink_backward igamma _dirichlet_grad _standard_gamma_grad
        _amp_foreach_non_finite_check_and_unscale _amp_update_scale _conj_copy range logspace fft_fftfreq fft_rfftfreq bartlett_window
        blackman_window hamming_window kaiser_window
        """,
    )
    | names("prims", "igamma igammac"),
    SUMS_WITHOUT_TEMPLATE: names(
        "aten",
        """
        _ctc_loss _ctc_loss_backward _embedding_bag _embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_forward_only
        _embedding_bag_per_sample_weights_backward _foreach_mm _foreach_powsum _masked_softmax _masked_softmax_backward _pdist_backward
        _pdist_forward _segment_reduce_backward _trilinear _weight_norm_interface_backward _compute_linear_combination
        batch_norm_update_stats conv_tbc embedding_renorm grid_sampler_3d_backward linalg__powsum multi_margin_loss_backward
        multilabel_margin_loss_backward segment_reduce
        replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward
        _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward
        _upsample_lanczos2d_aa _upsample_lanczos2d_aa_backward _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward
        _upsample_nearest_exact3d_backward upsample_bicubic2d upsample_bicubic2d_backward upsample_bilinear2d upsample_bilinear2d_backward
        upsample_linear1d_backward upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
        upsample_trilinear3d upsample_trilinear3d_backward convolution convolution_backward
        """,
    ),
    LINEAR_ALGEBRA: names("aten", "_cholesky_solve_helper geqrf linalg_lstsq") | names("prims", "svd"),
    RECURRENT: names("aten", "mkldnn_rnn_layer mkldnn_rnn_layer_backward quantized_gru quantized_lstm _pack_padded_sequence"),
    FUSED_OPTIMIZERS: names("aten", "_fused_adagrad _fused_adam _fused_adamw _fused_sgd"),
    QUANTISED: names(
        "aten",
        """
        _convert_weight_to_int4pack_for_cpu _dyn_quant_matmul_4bit _dyn_quant_pack_4bit_weight _empty_affine_quantized
        _empty_per_channel_affine_quantized _fake_quantize_learnable_per_channel_affine
        _fake_quantize_learnable_per_channel_affine_backward _fake_quantize_learnable_per_tensor_affine
        _fake_quantize_learnable_per_tensor_affine_backward _fake_quantize_per_tensor_affine_cachemask_tensor_qparams
        _fused_moving_avg_obs_fq_helper_functional _make_per_channel_quantized_tensor _make_per_tensor_quantized_tensor
        _scaled_mm_v2 _weight_int4pack_mm_for_cpu dequantize fake_quantize_per_channel_affine_cachemask
        fake_quantize_per_tensor_affine_cachemask quantize_per_channel quantize_per_tensor quantize_per_tensor_dynamic
        """,
    ),
    SCALED: names("aten", "_scaled_mm"),
    INT8_WEIGHTS: names("aten", "_weight_int8pack_mm"),
    SPARSE: names(
        "aten",
        """
        _coalesced _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo _indices_copy _sparse_addmm _sparse_broadcast_to_copy
        _sparse_compressed_tensor_with_dims _sparse_sum _spdiags _to_sparse _to_sparse_bsc _to_sparse_bsr _to_sparse_csc _to_sparse_csr
        _validate_compressed_sparse_indices _values_copy ccol_indices ccol_indices_copy col_indices col_indices_copy copy_sparse_to_sparse
        crow_indices crow_indices_copy dense_dim indices indices_copy is_coalesced resize_as_sparse row_indices row_indices_copy
        sparse_compressed_tensor sparse_coo_tensor sparse_dim sparse_resize sparse_resize_and_clear values values_copy
        """,
    ),
    NESTED: names(
        "aten",
        """
        _jagged_to_padded_dense_forward _nested_compute_contiguous_strides_offsets _nested_from_padded _nested_get_values_copy
        _nested_tensor_from_mask _nested_tensor_from_mask_left_aligned _nested_tensor_from_tensor_list _nested_view_from_buffer
        _nested_view_from_buffer_copy _nested_view_from_jagged_copy _padded_dense_to_jagged_forward
        """,
    ),
    OTHER_KERNELS: names(
        "aten",
        """
        _addmm_activation _aminmax _convolution _fused_sdp_choice _grid_sampler_2d_cpu_fallback _grid_sampler_2d_cpu_fallback_backward
        _index_put_impl _logcumsumexp _nnpack_spatial_convolution _scaled_dot_product_flash_attention_for_cpu
        _scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_fused_attention_overrideable
        _scaled_dot_product_fused_attention_overrideable_backward _slow_conv2d_backward _slow_conv2d_forward _stack
        _transform_bias_rescale_qkv convolution_backward_overrideable convolution_overrideable grid_sampler_2d_backward grid_sampler_3d
        mkldnn_convolution slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d
        to_mkldnn
        """,
    ),
    COLLECTIVES: names(
        "_c10d_functional",
        """
        all_gather_into_tensor all_gather_into_tensor_coalesced all_gather_into_tensor_out all_reduce all_reduce_ all_reduce_coalesced
        all_reduce_coalesced_ all_to_all_single batch_p2p_ops broadcast broadcast_ irecv isend reduce_scatter_tensor
        reduce_scatter_tensor_coalesced reduce_scatter_tensor_out
        """,
    )
    | names("_c10d_functional_autograd", "all_gather_into_tensor all_to_all_single reduce_scatter_tensor"),
    SCALARS: names("aten", "_foreach_addcdiv _foreach_addcmul"),
    FORWARD_MODE: names("aten", "_fw_primal _fw_primal_copy _make_dual _make_dual_copy glu_backward_jvp glu_jvp"),
    TESTS_OF_TORCH: names(
        "aten",
        """
        _foobar _test_autograd_multiple_dispatch _test_autograd_multiple_dispatch_view _test_autograd_multiple_dispatch_view_copy
        _test_functorch_fallback _test_optional_filled_intlist _test_optional_floatlist _test_optional_intlist _test_parallel_materialize
        _test_warn_in_autograd
        """,
    ),
    PRIMITIVES: names(
        "prims",
        """
        amax amin as_strided_scatter inductor_cvt_e8m0_rceil bessel_i0 bessel_i0e bessel_i1 bessel_i1e cat cbrt clone collapse
        collapse_view conj conj_physical copy_strided empty empty_permuted erf_inv fft_c2c fft_c2r fft_r2c fill floor full full_like gcd
        imag isfinite item mul pow prepare_softmax_online prod real reshape round shift_left shift_right_arithmetic signbit split_dim
        squeeze sum transpose trunc var view_of_dtype where xor_sum
        """,
    )
    | names("inductor", "accumulate_grad_"),
}
