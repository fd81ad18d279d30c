"""Workers with one mechanism switched back to vLLM's own: the controls of test_serving.py."""

from __future__ import annotations

import os
from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from bi_inductor.integrations.vllm.worker import InvariantCPUWorker


class StockAttention(InvariantCPUWorker):
    def register_attention(self) -> None:
        pass


class StockLayers(InvariantCPUWorker):
    """With mode 0: nothing between the linears and attention is compiled."""

    def check_model(self) -> None:
        pass


class StockLinears(InvariantCPUWorker):
    """In float32, where vLLM's linears are one op."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        os.environ["BI_INDUCTOR_ALLOW"] = "_C.onednn_mm"
        super().__init__(*args, **kwargs)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        CPUWorker.load_model(self, *args, **kwargs)


class StockSampler(InvariantCPUWorker):
    def init_device(self) -> None:
        CPUWorker.init_device(self)
