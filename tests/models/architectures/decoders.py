"""Decoders: tokens to logits."""

from __future__ import annotations

from typing import Any

from .architecture import VOCABULARY, Architecture, text

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
HEAD = {**GROUPED, "head_dim": 8}
# The same sizes in the words of GPT-2 and of those after it.
GPT = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 1,
    "n_head": 4,
    "n_positions": 64,
    "use_cache": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def decoder(name: str, model: str, config: dict[str, Any], padding: tuple[str, ...] = ("left", "right")) -> Architecture:
    return Architecture(name, "decoder", model, config, text, ("logits",), padding, dynamic=True)


DECODERS = (
    decoder("llama", "LlamaForCausalLM", GROUPED),
    decoder("gpt2", "GPT2LMHeadModel", GPT),
    decoder("mistral", "MistralForCausalLM", {**HEAD, "sliding_window": 4}),
    decoder("qwen2", "Qwen2ForCausalLM", GROUPED),
    decoder("qwen3", "Qwen3ForCausalLM", HEAD),
    decoder("gemma", "GemmaForCausalLM", HEAD),
    decoder("gemma2", "Gemma2ForCausalLM", {**HEAD, "num_hidden_layers": 2, "sliding_window": 4}),
    decoder("gemma3_text", "Gemma3ForCausalLM", {**HEAD, "num_hidden_layers": 2, "sliding_window": 4}),
    decoder("phi", "PhiForCausalLM", GROUPED),
    decoder("phi3", "Phi3ForCausalLM", GROUPED),
    decoder("gpt_neox", "GPTNeoXForCausalLM", SIZES),
    decoder(
        "gpt_neo",
        "GPTNeoForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "intermediate_size": 64,
            "max_position_embeddings": 64,
            "use_cache": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
        },
    ),
    decoder("gptj", "GPTJForCausalLM", {**GPT, "rotary_dim": 4}),
    decoder("codegen", "CodeGenForCausalLM", {**GPT, "rotary_dim": 4}),
    decoder("opt", "OPTForCausalLM", {**SIZES, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    decoder("bloom", "BloomForCausalLM", {**SIZES, "n_layer": 1, "n_head": 4}),
    decoder("falcon", "FalconForCausalLM", {**SIZES, "new_decoder_architecture": False}),
    decoder("mpt", "MptForCausalLM", {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 1, "n_heads": 4, "use_cache": False}, ()),
    decoder("stablelm", "StableLmForCausalLM", GROUPED),
    decoder("olmo", "OlmoForCausalLM", GROUPED),
    decoder("olmo2", "Olmo2ForCausalLM", GROUPED),
    decoder("cohere", "CohereForCausalLM", GROUPED),
    decoder("granite", "GraniteForCausalLM", GROUPED),
    decoder("starcoder2", "Starcoder2ForCausalLM", {**GROUPED, "sliding_window": 4}),
    decoder("smollm3", "SmolLM3ForCausalLM", GROUPED),
    decoder("glm", "GlmForCausalLM", HEAD),
    decoder("glm4", "Glm4ForCausalLM", HEAD),
    decoder("helium", "HeliumForCausalLM", HEAD),
    decoder("nemotron", "NemotronForCausalLM", GROUPED),
    decoder("exaone4", "Exaone4ForCausalLM", {**GROUPED, "num_hidden_layers": 2, "sliding_window": 4, "sliding_window_pattern": 2}),
    decoder("persimmon", "PersimmonForCausalLM", SIZES),
    decoder("ministral", "MinistralForCausalLM", {**HEAD, "sliding_window": 4}),
    decoder("arcee", "ArceeForCausalLM", GROUPED),
    decoder("biogpt", "BioGptForCausalLM", SIZES),
    decoder("gpt_bigcode", "GPTBigCodeForCausalLM", GPT),
)
