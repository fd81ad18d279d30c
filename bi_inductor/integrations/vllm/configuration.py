"""Which configurations of vLLM are batch-invariant, and what one that asks for it is changed to.

What is not known to be invariant is refused before anything starts, with the reason and what works instead.
"""

from __future__ import annotations

import logging
import os
import pkgutil
from collections.abc import Iterator
from typing import Any

from bi_inductor.errors import OptionError

BACKEND = "batch_invariant"
TESTED_VLLM = "0.32.0"
WORKER = "bi_inductor.integrations.vllm.worker.InvariantCPUWorker"

logger = logging.getLogger("vllm.bi_inductor")


def vllm_config(**settings: Any) -> dict[str, Any]:
    """A compilation config for ``LLM(compilation_config=...)``, or as JSON for ``-cc`` of the server.

    Args:
        settings: further fields of vLLM's CompilationConfig.

    Raises:
        OptionError: a setting that would undo what makes the run invariant.
    """
    ours = {"mode": 2, "backend": BACKEND, "custom_ops": ["none"]}
    for name, value in ours.items():
        if name in settings and settings[name] != value:
            raise OptionError(f"{name}: given {settings[name]!r}; a batch-invariant run needs {value!r}")
    return {**settings, **ours}


def asked(config: Any) -> bool:
    """Whether a VllmConfig asks for this backend."""
    return bool(config.compilation_config.backend == BACKEND)


def require_invariant(config: Any) -> None:
    """Raises OptionError naming every setting of a VllmConfig under which bits would follow the batch."""
    found = list(refusals(config))
    if found:
        raise OptionError(
            'backend "batch_invariant" cannot keep its promise in this configuration of vLLM:\n' + "\n".join(f"  {line}" for line in found)
        )


def refusals(config: Any) -> Iterator[str]:
    """One line for each setting that is not invariant: what it is, why, what works."""
    import vllm
    from vllm.platforms import current_platform

    compilation, model, parallel = config.compilation_config, config.model_config, config.parallel_config
    if vllm.__version__.split("+")[0].rpartition(".")[0] != TESTED_VLLM.rpartition(".")[0]:
        yield f"vLLM {vllm.__version__}: written for and tested with {TESTED_VLLM}; install that version"
    if not current_platform.is_cpu():
        yield (
            f"platform {current_platform.device_type}: the kernels, paged attention among them, have templates for GPUs, but the worker, "
            "the attention backend and the sampler here are subclasses of vLLM's for CPUs, and no GPU has run the kernels; run on CPU"
        )
    mode = int(compilation.mode or 0)
    if mode != 2:
        wrong = {
            0: "nothing is compiled (enforce_eager)",
            1: "vLLM does not compile on CPU in this mode",
            3: "vLLM replaces the backend by its own",
        }
        yield f'compilation mode {mode}: {wrong.get(mode, "unknown")}; use "mode": 2'
    if "none" not in compilation.custom_ops or any(op.startswith("+") for op in compilation.custom_ops):
        yield f'custom_ops {compilation.custom_ops}: kernels of vLLM stay in the graph; use "custom_ops": ["none"]'
    if os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"):
        yield "VLLM_BATCH_INVARIANT: vLLM's own mode replaces kernels too; unset it"
    if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING", "1") == "0":
        yield "VLLM_ENABLE_V1_MULTIPROCESSING=0: the worker shares this process, where kernels would be replaced for every engine; unset it"
    if model.quantization is not None:
        yield f"quantization {model.quantization!r}: its linears have no template; use an unquantised model"
    if config.lora_config is not None:
        yield "LoRA: adapters are grouped by request; merge the adapter into the model"
    if config.speculative_config is not None:
        yield "speculative decoding: verifying several tokens at once is not proven; turn it off"
    if config.cache_config.cache_dtype not in ("auto", str(model.dtype).removeprefix("torch.")):
        yield f"kv_cache_dtype {config.cache_config.cache_dtype!r}: keys and values would be rounded again; use 'auto'"
    if parallel.world_size > 1:
        yield f"{parallel.world_size} ranks: the order of sums over ranks is not defined; use one"
    if parallel.worker_cls not in ("auto", WORKER) and not _is_ours(parallel.worker_cls):
        yield f"worker_cls {parallel.worker_cls!r}: not a subclass of {WORKER}, which holds the kernels; leave it out"
    if model.runner_type != "generate":
        yield f"runner {model.runner_type!r}: only generation is proven"
    for given, kind in (
        (model.is_moe, "a mixture of experts: vLLM's expert kernels have no template"),
        (model.use_mla, "latent attention (MLA): there is no template"),
        (model.has_inner_state, "a model with state (Mamba, linear attention): there is no template"),
        (model.is_encoder_decoder, "an encoder-decoder model: cross attention is not proven"),
        (model.is_multimodal_model, "a multimodal model: its encoders run outside of the compiled graph"),
    ):
        if given:
            yield kind


def _is_ours(name: str) -> bool:
    """Whether a worker class builds on ours."""
    return issubclass(pkgutil.resolve_name(name), pkgutil.resolve_name(WORKER))


def apply(config: Any) -> None:
    """Changes a VllmConfig, before vLLM chooses its own worker, so that the worker is ours."""
    if config.parallel_config.worker_cls == "auto":
        config.parallel_config.worker_cls = WORKER
    # A saved AOT artifact does not carry our passes: a second start has to compile again (from Inductor's cache, which does).
    if os.environ.get("VLLM_USE_AOT_COMPILE") != "0":
        os.environ["VLLM_USE_AOT_COMPILE"] = "0"
        logger.info("batch_invariant: vLLM's AOT compile is off (VLLM_USE_AOT_COMPILE=0), Inductor's cache stays on")
