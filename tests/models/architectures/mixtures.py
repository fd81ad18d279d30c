"""Mixtures of experts: each token goes through some of the MLPs, grouped by expert over the whole batch."""

from __future__ import annotations

from typing import Any

from .architecture import Architecture, text
from .decoders import GROUPED, HEAD

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}

# Attention that keeps keys and values as one smaller vector.
LATENT = {
    **GROUPED,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}


def mixture(name: str, model: str, config: dict[str, Any], padding: tuple[str, ...] = ("left", "right")) -> Architecture:
    return Architecture(name, "mixture of experts", model, config, text, ("logits",), padding, dynamic=True)


MIXTURES = (
    mixture("mixtral", "MixtralForCausalLM", {**GROUPED, **LOCAL}),
    mixture("qwen2_moe", "Qwen2MoeForCausalLM", {**GROUPED, **EXPERTS, "shared_expert_intermediate_size": 32}),
    mixture("qwen3_moe", "Qwen3MoeForCausalLM", {**HEAD, **EXPERTS}),
    mixture("olmoe", "OlmoeForCausalLM", {**GROUPED, **EXPERTS}),
    mixture("granitemoe", "GraniteMoeForCausalLM", {**GROUPED, **LOCAL}),
    mixture("phimoe", "PhimoeForCausalLM", {**GROUPED, **LOCAL}),
    # Its sinks stand behind the last key, so their place in a softmax follows right padding (docs/numerics.md, section 8).
    mixture("gpt_oss", "GptOssForCausalLM", {**HEAD, **LOCAL, "num_hidden_layers": 2, "sliding_window": 4}, ("left",)),
    mixture(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        {
            **LATENT,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 0,
            "moe_intermediate_size": 32,
        },
    ),
)
