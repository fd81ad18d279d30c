"""Encoder-decoders: tokens in, tokens so far, logits out."""

from __future__ import annotations

from typing import Any

from .architecture import VOCABULARY, Architecture, encoder_decoder_text

T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 1,
    "num_heads": 4,
    "use_cache": False,
    "decoder_start_token_id": 0,
}
BART = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def encoder_decoder(name: str, model: str, config: dict[str, Any], padding: tuple[str, ...]) -> Architecture:
    return Architecture(name, "encoder-decoder", model, config, encoder_decoder_text, ("logits",), padding, dynamic=True)


BOTH, RIGHT = ("left", "right"), ("right",)

ENCODER_DECODERS = (
    encoder_decoder("t5", "T5ForConditionalGeneration", T5, BOTH),
    encoder_decoder("mt5", "MT5ForConditionalGeneration", T5, BOTH),
    encoder_decoder("umt5", "UMT5ForConditionalGeneration", T5, BOTH),
    encoder_decoder("bart", "BartForConditionalGeneration", BART, RIGHT),
    encoder_decoder("mbart", "MBartForConditionalGeneration", BART, RIGHT),
    encoder_decoder("pegasus", "PegasusForConditionalGeneration", BART, RIGHT),
    encoder_decoder("blenderbot", "BlenderbotForConditionalGeneration", BART, RIGHT),
    encoder_decoder("marian", "MarianMTModel", BART, RIGHT),
    encoder_decoder("m2m_100", "M2M100ForConditionalGeneration", BART, RIGHT),
    encoder_decoder("longt5", "LongT5ForConditionalGeneration", {**T5, "local_radius": 3}, ()),
    encoder_decoder(
        "switch_transformers", "SwitchTransformersForConditionalGeneration", {**T5, "num_decoder_layers": 1, "num_experts": 4}, ()
    ),
)
