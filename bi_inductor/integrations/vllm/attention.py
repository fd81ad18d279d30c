"""vLLM's paged attention by our kernel: each request by itself, over all of its keys in order (docs/numerics.md section 8).

vLLM's CPU kernel splits keys among threads and tiles by the batch, so its bits follow the schedule. Ours have no such choice: prefill,
chunked prefill, a prefix from the cache and decode give the same bits.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl, CPUAttentionMetadata

from bi_inductor.operators.paged_attention import Requests, attend


class InvariantAttentionBackend(CPUAttentionBackend):
    """vLLM's CPU attention backend with another implementation; blocks and metadata stay vLLM's."""

    @staticmethod
    def get_impl_cls() -> type[InvariantAttention]:
        return InvariantAttention


class InvariantAttention(CPUAttentionBackendImpl):
    """Decoder attention, causal, grouped queries, sliding window."""

    _latest: ClassVar[tuple[CPUAttentionMetadata, int, int, Requests] | None] = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        unknown = [
            name
            for name, given in (
                ("ALiBi slopes", self.alibi_slopes is not None),
                ("a soft cap of logits", bool(self.logits_soft_cap)),
                ("attention sinks", self.sinks is not None),
                (f"attention of type {self.attn_type}", self.attn_type != AttentionType.DECODER),
                (f"a KV cache of {self.kv_cache_dtype}", self.is_fp8_kv_cache),
            )
            if given
        ]
        if unknown:
            raise NotImplementedError(f'backend "batch_invariant" has no attention with {", ".join(unknown)}')

    def _cache(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """The cache as [slots, kv_heads, 2 * head_size], keys before values: a key of all heads lies together."""
        blocks, kv_heads, block_size, width = kv_cache.shape
        return kv_cache.view(blocks * block_size, kv_heads, width)

    def do_kv_cache_update(
        self, layer: torch.nn.Module, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        """Stores ``key`` and ``value`` [tokens, kv_heads, head_size] at their slots."""
        tokens = slot_mapping.shape[0]
        cache = self._cache(kv_cache)
        cache[..., : self.head_size].index_copy_(0, slot_mapping, key[:tokens])
        cache[..., self.head_size :].index_copy_(0, slot_mapping, value[:tokens])

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: CPUAttentionMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of ``query`` [tokens, heads, head_size] over the cache, into ``output``."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError('backend "batch_invariant" has no attention with a quantised output')
        if attn_metadata is None:  # vLLM warms up without requests
            return output
        if attn_metadata.causal is not True:
            raise NotImplementedError('backend "batch_invariant" has causal attention only')
        tokens, heads, head_size = attn_metadata.num_actual_tokens, self.num_heads, self.head_size
        blocks, kv_heads, block_size, width = kv_cache.shape
        cache = kv_cache.view(blocks, block_size, kv_heads, width)
        requests = self._requests(attn_metadata, blocks, block_size)
        attend(query[:tokens], cache, requests, self.scale, max(self.sliding_window, 0), output[:tokens].view(tokens, heads, head_size))
        return output

    @classmethod
    def _requests(cls, metadata: CPUAttentionMetadata, blocks: int, block_size: int) -> Requests:
        """Checked and converted once for all layers that share the metadata: vLLM makes a new object for each step."""
        if cls._latest is None or cls._latest[0] is not metadata or cls._latest[1:3] != (blocks, block_size):
            table, starts, lengths = metadata.block_table, metadata.query_start_loc, metadata.seq_lens
            requests = Requests.checked(table, starts, lengths, metadata.num_actual_tokens, blocks, block_size)
            cls._latest = (metadata, blocks, block_size, requests)
        return cls._latest[3]
