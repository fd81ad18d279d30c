"""Which models of vLLM compute nothing outside of the parts that are known: the compiled graph, the head, the sampler.

vLLM compiles what a model's class is decorated for (``support_torch_compile``). Everything else runs eagerly, without a word.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from vllm.compilation.wrapper import TorchCompileWithNoGuardsWrapper
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from bi_inductor.errors import UnsupportedOpError


def require_known_parts(model: nn.Module) -> None:
    """Looks at a loaded model of vLLM (checked in 0.32.0).

    Raises:
        UnsupportedOpError: a weight is used outside of the compiled parts and not by the head, or the logits are capped.
    """
    name = type(model).__name__
    inside = {part for module in model.modules() if _is_compiled(module) for part in module.modules()}
    outside = [path for path, module in model.named_modules() if _has_weights(module) and not (module in inside or _is_head(module))]
    if outside:
        given = ", ".join(outside[:3]) + (f" and {len(outside) - 3} more" if len(outside) > 3 else "")
        raise UnsupportedOpError(
            f"{name}: vLLM does not compile {given}, so torch's own kernels would run there, and their bits follow the batch. "
            "Allowed are models that vLLM compiles as a whole (support_torch_compile), such as LlamaForCausalLM."
        )
    if any(isinstance(module, LogitsProcessor) and module.soft_cap is not None for module in model.modules()):
        raise UnsupportedOpError(
            f"{name}: vLLM caps its logits by torch's own tanh outside of the compiled graph, which is not proven. "
            "Allowed are models without final_logit_softcapping."
        )


def _is_compiled(module: Any) -> bool:
    return isinstance(module, TorchCompileWithNoGuardsWrapper) and not module.do_not_compile


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None


def _is_head(module: nn.Module) -> bool:
    return isinstance(module, ParallelLMHead)
