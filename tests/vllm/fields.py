"""Every field of vLLM's configuration that configuration.py does not look at, and why it has no part in the bits of a request.

A field that is in neither place fails test_configuration.py: another version of vLLM brings some, and each needs a proof or a refusal.
"""

from __future__ import annotations

# Which requests are computed when, with how many tokens at a time, in which blocks: what test_serving.py and test_requests.py vary.
SCHEDULE = {
    "cache_config": """block_size user_specified_block_size prefix_match_unit gpu_memory_utilization num_gpu_blocks_override
        enable_prefix_caching prefix_caching_hash_algo prefix_cache_retention_interval num_gpu_blocks num_cpu_blocks
        effective_attention_block_size kv_cache_size_tokens kv_cache_max_concurrency hash_block_size cache_hit_alignment_tokens
        kv_cache_memory_bytes kv_cache_layout _block_size_resolved""",
    "scheduler_config": """max_num_batched_tokens max_num_scheduled_tokens max_num_seqs max_num_active_seqs long_prefill_token_threshold
        long_prefill_token_threshold_adaptive max_num_queued_reqs max_num_queued_tokens enable_chunked_prefill policy scheduler_cls
        disable_hybrid_kv_cache_manager scheduler_reserve_full_isl watermark prefill_schedule_interval async_scheduling stream_interval
        runner_type""",
    "vllm_config": "scheduler_config performance_mode",
}
# What is known of the model in other fields that are looked at, or goes into the graph that the backend compiles.
MODEL = {
    "model_config": """model model_weights runner convert seed hf_config hf_text_config hf_config_path hf_overrides model_class_overrides
        config_format dtype max_model_len disable_sliding_window is_submodel_config word_embeddings_untied_by_checkpoint enforce_eager
        allow_deprecated_quantization model_impl logits_processors pooler_config multimodal_config disable_cascade_attn
        spec_target_max_model_len logprobs_mode max_logprobs generation_config override_generation_config""",
    "cache_config": "is_attention_free sliding_window kv_cache_dtype_skip_layers",
    "scheduler_config": """is_multimodal_model max_num_encoder_input_tokens encoder_cache_size disable_chunked_mm_input""",
    "vllm_config": "quant_config load_config engram_config",
}
# Names, places, tokenizers, what is logged or measured, when a process ends.
AROUND = {
    # By it the plugin knows that it is asked.
    "compilation_config": """backend debug_dump_path cache_dir compile_cache_save_format local_cache_dir enabled_custom_ops
        disabled_custom_ops traced_files compilation_time encoder_compilation_time static_forward_context""",
    "model_config": """tokenizer tokenizer_mode trust_remote_code allowed_local_media_path allowed_media_domains revision code_revision
        tokenizer_revision skip_tokenizer_init served_model_name hf_token io_processor_plugin renderer_num_workers""",
    "vllm_config": """device_config observability_config logging_config profiler_config kv_events_config structured_outputs_config
        additional_config instance_id optimization_level shutdown_timeout ec_manager_config""",
    "parallel_config": """data_parallel_rank data_parallel_rank_local data_parallel_master_ip data_parallel_rpc_port dp_sync_interval
        data_parallel_master_port data_parallel_backend data_parallel_external_lb data_parallel_hybrid_lb data_parallel_size_local
        data_parallel_index max_parallel_loading_workers ray_workers_use_nsight ray_runtime_env placement_group worker_extension_cls
        master_addr master_port node_rank nnodes numa_bind numa_bind_nodes numa_bind_cpus assigned_physical_gpu_ids
        distributed_timeout_seconds cpu_distributed_timeout_seconds rank _data_parallel_master_port_list _coord_store_port
        _api_process_count _api_process_rank enable_fault_tolerance fault_tolerance_config enable_shm_tensor_arena""",
}
# For modes that are refused, models that are refused, several ranks or accelerators.
ELSEWHERE = {
    "model_config": """sleep_preserve_parameter_names sleep_mode_backend sleep_mode_offload_cudagraph enable_nccl_comm_suspend
        enable_cumem_allocator""",
    "cache_config": """mamba_page_size_padded skip_page_size_padded mamba_block_size mamba_cache_dtype mamba_ssm_cache_dtype
        mamba_cache_mode enable_mamba_shared_prefix_checkpoint replayssm_buffer_len use_replayssm use_kda_recoverssm swa_bounded_replay
        kv_offloading_backend""",
    "parallel_config": """pipeline_parallel_size tensor_parallel_size prefill_context_parallel_size decode_context_parallel_size
        is_moe_model enable_hc_sp enable_expert_parallel enable_batch_sharded_sampling enable_ep_weight_filter enable_eplb eplb_config
        expert_placement_strategy all2all_backend disable_custom_all_reduce enable_elastic_ep elastic_ep_max_dp_size enable_dbo
        dbo_decode_token_threshold dbo_prefill_token_threshold disable_nccl_for_dp_synchronization dcp_kv_cache_interleave_size
        dcp_comm_backend dcp_q_replicate cp_kv_cache_interleave_size _allow_auto_resolve_cp_interleave_size""",
    "compilation_config": """ir_enable_torch_wrap splitting_ops compile_mm_encoder cudagraph_mm_encoder encoder_cudagraph_token_budgets
        encoder_cudagraph_max_vision_items_per_batch encoder_cudagraph_max_frames_per_batch cudagraph_decoder_replay
        decoder_replay_cudagraph_capture_sizes decoder_replay_trim_threshold compile_sizes compile_ranges_endpoints inductor_passes
        cudagraph_mode cudagraph_num_of_warmups cudagraph_capture_sizes cudagraph_copy_inputs cudagraph_specialize_lora
        use_inductor_graph_partition pass_config max_cudagraph_capture_size fast_moe_cold_start static_all_moe_layers""",
    # The platform for CPUs takes one backend, whatever is asked.
    "attention_config": """backend minimax_m3_msa_decode_backend backend_per_kind flash_attn_version
        flash_attn_max_num_splits_for_cuda_graph tokenspeed_mla_min_split_kv tq_max_kv_splits_for_cuda_graph use_trtllm_attention
        disable_flashinfer_q_quantization mla_prefill_backend use_prefill_query_quantization indexer_kv_dtype indexer_sparse_logits
        hisparse_config sparse_mla_force_mqa sparse_mla_prefill_workspace_factor flex_attn_block_m flex_attn_block_n
        flex_attn_q_block_size flex_attn_kv_block_size""",
    "kernel_config": """enable_flashinfer_autotune enable_rocm_segmented_attn_autotune enable_cutedsl_warmup enable_jit_warmup moe_backend
        sparse_indexer_topk_backend linear_backend_per_quant""",
    "offload_config": "offload_backend",
    "vllm_config": "mamba_config aux_output_config",
}


def without_part(part: str) -> set[str]:
    """The fields of a part of the configuration that are named here."""
    return {name for group in (SCHEDULE, MODEL, AROUND, ELSEWHERE) for name in group.get(part, "").split()}
