"""State space models and linear attention, alone or between layers of attention."""

from __future__ import annotations

from typing import Any

from .architecture import VOCABULARY, Architecture, text
from .decoders import GROUPED, HEAD, SIZES


def recurrent(name: str, model: str, config: dict[str, Any]) -> Architecture:
    # Several of them write their scan out as a loop over the positions: Dynamo makes a graph for each length.
    return Architecture(name, "state space, linear attention", model, config, text, ("logits",))


RECURRENT = (
    recurrent("mamba", "MambaForCausalLM", {**SIZES, "state_size": 8}),
    recurrent("falcon_mamba", "FalconMambaForCausalLM", {**SIZES, "state_size": 8}),
    recurrent("mamba2", "Mamba2ForCausalLM", {**SIZES, "state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8}),
    recurrent("rwkv", "RwkvForCausalLM", {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "use_cache": False}),
    recurrent(
        "bamba",
        "BambaForCausalLM",
        {
            **GROUPED,
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_d_state": 8,
            "mamba_chunk_size": 8,
            "attn_layer_indices": [],
            "num_hidden_layers": 1,
        },
    ),
    recurrent(
        "jamba",
        "JambaForCausalLM",
        {
            **GROUPED,
            "num_hidden_layers": 2,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 2,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
    recurrent(
        "qwen3_next",
        "Qwen3NextForCausalLM",
        {
            **HEAD,
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
        },
    ),
    recurrent("lfm2", "Lfm2ForCausalLM", {**GROUPED, "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}),
)
