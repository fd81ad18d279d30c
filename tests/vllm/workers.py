"""Workers with one mechanism switched back to vLLM's own: the controls of test_serving.py."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from bi_inductor.integrations.vllm.worker import InvariantCPUWorker


class StockAttention(InvariantCPUWorker):
    def register_attention(self) -> None:
        pass


class StockLinears(InvariantCPUWorker):
    def load_model(self, *args: Any, **kwargs: Any) -> None:
        CPUWorker.load_model(self, *args, **kwargs)


class StockSampler(InvariantCPUWorker):
    def init_device(self) -> None:
        CPUWorker.init_device(self)
