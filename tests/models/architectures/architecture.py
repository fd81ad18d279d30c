"""One architecture of transformers: how its tiny seeded model and a batch of inputs are made, and what of its result is compared."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

SAMPLES = 8
LENGTH = 7
VOCABULARY = 99

Inputs = dict[str, torch.Tensor]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def _ids(first: int = 3) -> torch.Tensor:
    """Random tokens int64[samples, length]; the first few of the vocabulary are special ones."""
    return torch.randint(first, VOCABULARY, (SAMPLES, LENGTH), generator=generator())


def _mask() -> torch.Tensor:
    """A mask int64[samples, length] of samples of different lengths, padded on the right."""
    lengths = torch.tensor([LENGTH, 4, LENGTH, 2, 6, LENGTH, 5, 3])
    return (torch.arange(LENGTH) < lengths[:, None]).long()


def text(model: nn.Module) -> Inputs:
    """Tokens, their mask, and their positions for a model that takes them."""
    inputs = {"input_ids": _ids(), "attention_mask": _mask()}
    if "position_ids" in inspect.signature(model.forward).parameters:
        inputs["position_ids"] = torch.arange(LENGTH).expand(SAMPLES, LENGTH).contiguous()
    return inputs


def encoder_decoder_text(model: nn.Module) -> Inputs:
    """Tokens and their mask for the encoder, four tokens for the decoder."""
    return {"input_ids": _ids(), "attention_mask": _mask(), "decoder_input_ids": _ids()[:, :4].flip(0)}


def images(size: int = 32, channels: int = 3) -> Callable[[nn.Module], Inputs]:
    """Noise as pixels [samples, channels, size, size]."""

    def make(model: nn.Module) -> Inputs:
        return {"pixel_values": torch.randn(SAMPLES, channels, size, size, generator=generator())}

    return make


@dataclass(frozen=True)
class Architecture:
    """One architecture.

    Attributes:
        name: transformers' name for it.
        family: the heading in the table.
        model: the class of the model in transformers.
        config: arguments of its config, which make it tiny.
        inputs: a batch of samples for the model, the arguments of its forward by name.
        outputs: the fields of its result that are compared.
        padding: the sides on which longer padding leaves a sample what it is; empty for a model whose meaning follows the length.
        dynamic: `dynamic` of torch.compile for the graph that serves every batch size. True leaves every size open; None only those that
            change (sizes of images are not what this is about).
    """

    name: str
    family: str
    model: str
    config: Mapping[str, Any]
    inputs: Callable[[nn.Module], Inputs]
    outputs: tuple[str, ...]
    padding: tuple[str, ...] = ()
    dynamic: bool | None = None

    def build(self) -> nn.Module:
        """The model with weights of seed 0, in eval mode."""
        model_class = getattr(transformers, self.model)
        config = model_class.config_class(**self.config)
        torch.manual_seed(0)
        model: nn.Module = model_class(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    # Weights of 0.02 leave everything but the residual stream near zero.
                    parameter.mul_(2)
        return model


class Compared(nn.Module):
    """A model as a function of tensors to the fields of its result that are compared.

    Where the mask has padding, a result [batch, length, ...] is zero: nothing is promised of it.
    """

    def __init__(self, model: nn.Module, outputs: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.outputs = outputs

    def forward(self, **inputs: torch.Tensor) -> Inputs:
        result = self.model(**inputs)
        compared = {name: getattr(result, name) for name in self.outputs}
        mask = inputs.get("attention_mask")
        if mask is not None and "decoder_input_ids" not in inputs:
            compared = {
                name: torch.where(mask[:, :, None] == 1, value, 0) if value.dim() == 3 and value.shape[1] == mask.shape[1] else value
                for name, value in compared.items()
            }
        return compared
