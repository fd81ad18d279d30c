"""Several kinds of input: text with images or sound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .architecture import SAMPLES, Architecture, Inputs, generator, images, text
from .decoders import GROUPED, SIZES
from .vision import VIT

IMAGE_TOKEN = 98


def text_and_images(size: int = 32) -> Callable[[nn.Module], Inputs]:
    """Tokens with their mask, and one image a sample."""

    def make(model: nn.Module) -> Inputs:
        inputs = text(model)
        inputs.pop("position_ids", None)
        return {**inputs, **images(size)(model)}

    return make


def tokens_around_images(model: nn.Module) -> Inputs:
    """Each sample is an image, sixteen tokens that stand for it, and three of text."""
    ids = torch.randint(3, 90, (SAMPLES, 20), generator=generator())
    ids[:, 1:17] = IMAGE_TOKEN
    mask = torch.ones_like(ids)
    mask[2, 18:] = 0
    return {"input_ids": ids, "attention_mask": mask, **images()(model)}


def multimodal(
    name: str, model: str, config: dict[str, Any], outputs: tuple[str, ...], inputs: Callable[[nn.Module], Inputs] | None = None
) -> Architecture:
    return Architecture(name, "multimodal", model, config, inputs or text_and_images(), outputs)


EMBEDDINGS = ("text_embeds", "image_embeds")
TOWERS = {"text_config": SIZES, "vision_config": VIT, "projection_dim": 16}

MULTIMODAL = (
    multimodal("clip", "CLIPModel", TOWERS, EMBEDDINGS),
    multimodal("chinese_clip", "ChineseCLIPModel", TOWERS, EMBEDDINGS),
    multimodal("siglip", "SiglipModel", TOWERS, EMBEDDINGS),
    multimodal(
        "clipseg",
        "CLIPSegForImageSegmentation",
        {**TOWERS, "extract_layers": [0], "reduce_dim": 16, "decoder_num_attention_heads": 4, "decoder_intermediate_size": 32},
        ("logits",),
    ),
    multimodal("vilt", "ViltModel", {**SIZES, **VIT}, ("last_hidden_state",)),
    multimodal("blip", "BlipForConditionalGeneration", TOWERS, ("logits",)),
    multimodal("git", "GitForCausalLM", {**SIZES, "vision_config": VIT}, ("logits",)),
    multimodal(
        "flava",
        "FlavaModel",
        {"text_config": SIZES, "image_config": VIT, "multimodal_config": SIZES, "hidden_size": 32},
        ("multimodal_embeddings",),
    ),
    multimodal(
        "llava",
        "LlavaForConditionalGeneration",
        {
            "text_config": {**GROUPED, "model_type": "llama"},
            "vision_config": {**VIT, "model_type": "clip_vision_model"},
            "image_token_index": IMAGE_TOKEN,
            "vision_feature_layer": -1,
        },
        ("logits",),
        tokens_around_images,
    ),
    multimodal(
        "paligemma",
        "PaliGemmaForConditionalGeneration",
        {
            "text_config": {**GROUPED, "head_dim": 8, "model_type": "gemma"},
            "vision_config": {**VIT, "model_type": "siglip_vision_model", "projection_dim": 32},
            "image_token_id": IMAGE_TOKEN,
            "projection_dim": 32,
            "hidden_size": 32,
        },
        ("logits",),
        tokens_around_images,
    ),
)
