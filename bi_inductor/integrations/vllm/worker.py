"""The worker process of an invariant engine: vLLM's CPU worker with our linears, attention and sampler in it."""

from __future__ import annotations

import os
from typing import Any

from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, AdapterLogitsProcessor
from vllm.v1.worker.cpu_worker import CPUWorker

from bi_inductor.integrations.vllm.linears import invariant_linears
from bi_inductor.integrations.vllm.models import require_known_parts
from bi_inductor.integrations.vllm.processors import watch
from bi_inductor.integrations.vllm.sampler import InvariantSampler

# Ops of vLLM in the compiled graph that call our attention backend: no unknown kernels.
KNOWN_OPS = ("vllm.unified_attention_with_output", "vllm.unified_kv_cache_update")


class InvariantCPUWorker(CPUWorker):
    """Named by configuration.py as ``parallel_config.worker_cls`` (checked in vLLM 0.32.0).

    The process belongs to one engine, so what is registered and set here reaches no other.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        allowed = [name for name in os.environ.get("BI_INDUCTOR_ALLOW", "").split(",") if name]
        os.environ["BI_INDUCTOR_ALLOW"] = ",".join([*allowed, *KNOWN_OPS])
        self.register_attention()
        super().__init__(*args, **kwargs)

    def register_attention(self) -> None:
        """Puts our attention backend in the place of vLLM's for CPUs, by vLLM's own registry."""
        register_backend(AttentionBackendEnum.CPU_ATTN, "bi_inductor.integrations.vllm.attention.InvariantAttentionBackend")

    def init_device(self) -> None:
        """The sampler is made with the model runner and replaced before the first use; logits processors of the user are watched."""
        super().init_device()
        self.model_runner.sampler = InvariantSampler(self.model_runner)
        processors = self.model_runner.input_batch.logitsprocs
        # An AdapterLogitsProcessor hands its functions one row each.
        trusted = (*BUILTIN_LOGITS_PROCESSORS, AdapterLogitsProcessor)
        watch(processors.argmax_invariant, trusted)
        watch(processors.non_argmax_invariant, trusted)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Weights stay as they are stored, for our linears; nothing of the model may compute elsewhere."""
        with invariant_linears():
            super().load_model(*args, **kwargs)
        self.check_model()

    def check_model(self) -> None:
        """Raises UnsupportedOpError for a model with a part whose bits may follow the batch."""
        require_known_parts(self.model_runner.get_model())

    def reload_weights(self, *args: Any, **kwargs: Any) -> None:
        """As when the model was loaded: vLLM prepares each layer again, for its own linears if it finds them."""
        with invariant_linears():
            super().reload_weights(*args, **kwargs)
