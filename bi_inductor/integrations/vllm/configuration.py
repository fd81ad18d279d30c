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
    yield from _of_the_installation()
    yield from _of_the_compile(config.compilation_config, config.kernel_config)
    yield from _of_the_model(config.model_config, config.attention_config)
    yield from _of_the_cache(config)
    yield from _of_the_processes(config.parallel_config)
    yield from _of_the_engine(config)


def _of_the_installation() -> Iterator[str]:
    import vllm
    from vllm.platforms import current_platform

    if vllm.__version__.split("+")[0].rpartition(".")[0] != TESTED_VLLM.rpartition(".")[0]:
        yield f"vLLM {vllm.__version__}: written for and tested with {TESTED_VLLM}; install that version"
    if not current_platform.is_cpu():
        yield (
            f"platform {current_platform.device_type}: the kernels, paged attention among them, have templates for GPUs, but the worker, "
            "the attention backend and the sampler here are subclasses of vLLM's for CPUs, and no GPU has run the kernels; run on CPU"
        )
    elif current_platform.is_zen_cpu():
        yield "zentorch: vLLM's platform for it is not proven; uninstall zentorch"
    if os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"):
        yield "VLLM_BATCH_INVARIANT: vLLM's own mode replaces kernels too; unset it"
    if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING", "1") == "0":
        yield "VLLM_ENABLE_V1_MULTIPROCESSING=0: the worker shares this process, where kernels would be replaced for every engine; unset it"


def _of_the_compile(compilation: Any, kernel: Any) -> Iterator[str]:
    mode = int(compilation.mode or 0)
    if mode != 2:
        wrong = {
            0: "nothing is compiled (enforce_eager, TORCH_COMPILE_DISABLE=1 or VLLM_USE_BREAKABLE_CUDAGRAPH=1 do that too)",
            1: "vLLM does not compile on CPU in this mode",
            3: "vLLM replaces the backend by its own",
        }
        yield f'compilation mode {mode}: {wrong.get(mode, "unknown")}; use "mode": 2'
    if "none" not in compilation.custom_ops or any(op.startswith("+") for op in compilation.custom_ops):
        yield f'custom_ops {compilation.custom_ops}: kernels of vLLM stay in the graph; use "custom_ops": ["none"]'
    shapes = compilation.dynamic_shapes_config
    kind = getattr(shapes.type, "value", shapes.type)
    if kind != "backed" or shapes.evaluate_guards:
        given = f"type {kind!r}, evaluate_guards {shapes.evaluate_guards}"
        yield f"dynamic_shapes_config with {given}: other graphs than the proven one for all sizes; leave it out"
    if compilation.inductor_compile_config.get("max_autotune"):
        yield "inductor_compile_config with max_autotune: kernels would be chosen by their time; leave it out"
    replaced = {op: given[0] for op, given in vars(kernel.ir_op_priority).items() if given and given[0] != "native"}
    if replaced:
        yield f"ir_op_priority {replaced}: kernels of vLLM stay in the graph; leave it out"
    if kernel.linear_backend != "auto":
        yield f"linear_backend {kernel.linear_backend!r}: linears are the operator of this backend; use 'auto'"


def _of_the_model(model: Any, attention: Any) -> Iterator[str]:
    if model.quantization is not None or model.quantization_config is not None:
        yield f"quantization {model.quantization or model.quantization_config!r}: its linears have no template; use an unquantised model"
    if model.runner_type != "generate":
        yield f"runner {model.runner_type!r}: only generation is proven"
    head = model.head_dtype
    if head != model.dtype:
        yield f"head_dtype {head}: vLLM calls torch's linear for a head of another dtype than the model ({model.dtype}); leave it out"
    for given, kind in (
        (model.is_moe, "a mixture of experts: vLLM's expert kernels have no template"),
        (model.use_mla, "latent attention (MLA): there is no template"),
        (model.has_inner_state, "a model with state (Mamba, linear attention): there is no template"),
        (model.is_encoder_decoder, "an encoder-decoder model: cross attention is not proven"),
        (model.is_multimodal_model, "a multimodal model: its encoders run outside of the compiled graph"),
        (model.using_transformers_backend(), "model_impl 'transformers': only vLLM's own models are proven; use 'vllm'"),
        (model.enable_prompt_embeds, "enable_prompt_embeds: prompts given as embeddings are not proven; give tokens"),
        (model.enable_sleep_mode, "enable_sleep_mode: waking up is not proven; stop the engine and start it again"),
        (model.use_fp64_gumbel, "use_fp64_gumbel: random numbers here are Philox by seed and position; leave it out"),
        (model.return_sampling_mask, "return_sampling_mask: the sampler here makes no mask; leave it out"),
        (model.enable_trace_replay, "enable_trace_replay: routing of a recorded run is not proven; leave it out"),
        (attention.use_non_causal, "use_non_causal: there is causal attention only; leave it out"),
    ):
        if given:
            yield kind


def _of_the_cache(config: Any) -> Iterator[str]:
    cache, offload = config.cache_config, config.offload_config
    if cache.cache_dtype not in ("auto", str(config.model_config.dtype).removeprefix("torch.")):
        yield f"kv_cache_dtype {cache.cache_dtype!r}: keys and values would be rounded again; use 'auto'"
    if cache.kv_sharing_fast_prefill:
        yield "kv_sharing_fast_prefill: layers would see other tokens of a prompt; leave it out"
    if config.kv_transfer_config is not None or cache.kv_offloading_size is not None:
        yield "KV transfer or offloading: connectors read blocks in the layout of vLLM's kernel; leave it out"
    if config.ec_transfer_config is not None:
        yield "EC transfer: encoders run elsewhere; leave it out"
    if offload.uva.cpu_offload_gb > 0 or offload.prefetch.offload_group_size > 0:
        yield "offloaded weights: they are moved between layers in eager code that is not proven; leave it out"


def _of_the_processes(parallel: Any) -> Iterator[str]:
    if parallel.world_size > 1:
        yield f"{parallel.world_size} ranks: the order of sums over ranks is not defined; use one"
    if parallel.data_parallel_size > 1:
        yield f"data_parallel_size {parallel.data_parallel_size}: only one engine is proven; start a server for each"
    if parallel.distributed_executor_backend not in (None, "mp", "uni"):
        given = parallel.distributed_executor_backend
        yield f"distributed_executor_backend {given!r}: a worker is proven in a process of this machine only; use 'mp'"
    if parallel.ubatch_size > 1:
        yield f"ubatch_size {parallel.ubatch_size}: batches cut in two are not proven; leave it out"
    if parallel.worker_cls not in ("auto", WORKER) and not _is_ours(parallel.worker_cls):
        yield f"worker_cls {parallel.worker_cls!r}: not a subclass of {WORKER}, which holds the kernels; leave it out"


def _of_the_engine(config: Any) -> Iterator[str]:
    if config.lora_config is not None:
        yield "LoRA: adapters are grouped by request; merge the adapter into the model"
    if config.speculative_config is not None:
        yield "speculative decoding: verifying several tokens at once is not proven; turn it off"
    if config.watermark_config is not None:
        yield "watermarks: vLLM draws with its own sampler; leave it out"
    if config.diffusion_config is not None:
        yield "diffusion: tokens of a block see each other; use a model that generates from left to right"
    if config.reasoning_config is not None:
        yield "reasoning_config (reasoning_parser sets it): budgets for thinking are not proven; leave it out and parse the text"
    if config.weight_transfer_config is not None:
        yield "weight_transfer_config: weights would be packed for vLLM's linears; call reload_weights or start again"
    if config.use_v2_model_runner:
        yield "model runner V2: the sampler is proven in the first only; set VLLM_USE_V2_MODEL_RUNNER=0"


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
