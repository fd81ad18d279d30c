"""A logits processor as a user registers it."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor


class NearTheBest(LogitsProcessor):  # type: ignore[misc]  # vLLM has no types
    """Excludes tokens far below the most probable one of their request."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        pass

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: Any) -> None:
        pass

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.masked_fill_(logits < logits.amax(-1, keepdim=True) - 2, -torch.inf)
