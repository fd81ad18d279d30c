"""Several kinds of input: text with images or sound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from .architecture import Architecture, Inputs, images, text
from .decoders import SIZES
from .vision import VIT


def text_and_images(size: int = 32) -> Callable[[nn.Module], Inputs]:
    """Tokens with their mask, and one image a sample."""

    def make(model: nn.Module) -> Inputs:
        inputs = text(model)
        inputs.pop("position_ids", None)
        return {**inputs, **images(size)(model)}

    return make


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
    multimodal("blip", "BlipForConditionalGeneration", TOWERS, ("logits",)),
    multimodal("git", "GitForCausalLM", {**SIZES, "vision_config": VIT}, ("logits",)),
    multimodal(
        "flava",
        "FlavaModel",
        {"text_config": SIZES, "image_config": VIT, "multimodal_config": SIZES, "hidden_size": 32},
        ("multimodal_embeddings",),
    ),
)
