"""vLLM's own configurations, made as its command line makes them, without an engine: what is accepted, changed, refused, left alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from inspect import getclosurevars
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

import bi_inductor
from bi_inductor.integrations.vllm import configuration
from tests.vllm.engine import make_config
from tests.vllm.fields import without_part

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

from vllm.config.cache import CacheDType  # noqa: E402  # only where vLLM is there
from vllm.engine.arg_utils import EngineArgs  # noqa: E402  # as above
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS  # noqa: E402  # as above
from vllm.platforms import current_platform  # noqa: E402  # as above
from vllm.plugins import load_general_plugins  # noqa: E402  # as above
from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: E402  # as above

OURS = bi_inductor.vllm_config()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """vLLM writes into the environment when it makes a configuration."""
    before = dict(os.environ)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    load_general_plugins()
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_config().save_pretrained(folder)
    return folder


def made(model: Path, **arguments: Any) -> Any:
    """The VllmConfig of an engine."""
    given = {"skip_tokenizer_init": True, "dtype": "float32", "max_model_len": 640, "compilation_config": OURS, **arguments}
    return EngineArgs(model=str(model), **given).create_engine_config()


def test_ours_is_accepted_and_gets_the_worker(model: Path) -> None:
    config = made(model)
    assert config.parallel_config.worker_cls == configuration.WORKER
    assert os.environ["VLLM_USE_AOT_COMPILE"] == "0"


ACCEPTED: dict[str, dict[str, Any]] = {
    "float16": {"dtype": "float16"},
    "bfloat16": {"dtype": "bfloat16"},
    "chunks and a cache": {"enable_prefix_caching": True, "max_num_batched_tokens": 16, "max_num_seqs": 16},
    "priorities": {"scheduling_policy": "priority"},
    "logprobs after processing": {"logprobs_mode": "processed_logprobs"},
    "another block size": {"block_size": 32},
    "a grammar of outlines": {"structured_outputs_config": {"backend": "outlines"}},
    "the KV cache in the type of the model": {"dtype": "bfloat16", "kv_cache_dtype": "bfloat16"},
}


@pytest.mark.parametrize("arguments", ACCEPTED.values(), ids=ACCEPTED)
def test_what_is_proven_is_accepted(model: Path, arguments: dict[str, Any]) -> None:
    assert made(model, **arguments).parallel_config.worker_cls == configuration.WORKER


def test_async_scheduling_is_off_on_a_cpu(model: Path) -> None:
    """vLLM's platform for CPUs switches it off, whoever asks."""
    assert made(model, async_scheduling=True).scheduler_config.async_scheduling is False


@pytest.mark.parametrize("name", ["CPU_ATTN", "FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION", "FLASHINFER"])
def test_an_attention_backend_may_be_named(model: Path, name: str) -> None:
    assert made(model, attention_backend=name).parallel_config.worker_cls == configuration.WORKER


def test_every_attention_backend_becomes_that_of_cpus() -> None:
    """vLLM takes no other on a CPU, with a line in the log; the worker replaces that one."""

    class Selector:
        use_sparse = use_mla = False

    found = {current_platform.get_attn_backend_cls(backend, Selector()) for backend in (None, *AttentionBackendEnum)}
    assert found == {AttentionBackendEnum.CPU_ATTN.get_path()}


@pytest.mark.parametrize("method", QUANTIZATION_METHODS)
def test_every_quantisation_is_refused(model: Path, method: str) -> None:
    """By us, or by vLLM, which knows some for GPUs, for other types or (the TypeErrors) for quantised checkpoints only."""
    with pytest.raises((ValidationError, ValueError, ImportError, NotImplementedError, TypeError)):
        made(model, quantization=method, dtype="bfloat16")


@pytest.mark.parametrize("kind", sorted(set(get_args(CacheDType)) - {"auto", "float32"}))
def test_every_other_kv_cache_is_refused(model: Path, kind: str) -> None:
    with pytest.raises((ValidationError, ValueError)):
        made(model, kv_cache_dtype=kind)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "eager": ({"enforce_eager": True}, r"compilation mode 0: nothing is compiled \(enforce_eager"),
    "mode 0": ({"compilation_config": {**OURS, "mode": 0}}, "compilation mode 0"),
    "mode 1": ({"compilation_config": {**OURS, "mode": 1}}, "compilation mode 1"),
    "custom ops": ({"compilation_config": {**OURS, "custom_ops": ["all"]}}, "custom_ops"),
    "unbacked shapes": ({"compilation_config": {**OURS, "dynamic_shapes_config": {"type": "unbacked"}}}, "dynamic_shapes_config"),
    "autotuning": ({"compilation_config": {**OURS, "inductor_compile_config": {"max_autotune": True}}}, "max_autotune"),
    "kernels for linears": ({"linear_backend": "torch"}, "linear_backend"),
    "kernels for norms": ({"kernel_config": {"ir_op_priority": {"rms_norm": ["vllm_c"]}}}, "ir_op_priority"),
    "fp8": ({"dtype": "bfloat16", "quantization": "fp8"}, "quantization 'fp8'"),
    "LoRA": ({"enable_lora": True}, "LoRA"),
    "n-grams": (
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}},
        "speculative decoding",
    ),
    "embeddings": ({"runner": "pooling"}, "runner 'pooling'"),
    "a head in float32": ({"dtype": "bfloat16", "hf_overrides": {"head_dtype": "float32"}}, r"head_dtype torch\.float32"),
    "a KV cache in fp8": ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype 'fp8"),
    "a KV cache in bfloat16": ({"kv_cache_dtype": "bfloat16"}, "kv_cache_dtype 'bfloat16'"),
    "tensor parallel": ({"tensor_parallel_size": 2}, "2 ranks"),
    "pipeline parallel": ({"pipeline_parallel_size": 2}, "2 ranks"),
    "data parallel": ({"data_parallel_size": 2}, "data_parallel_size 2"),
    "no process": ({"distributed_executor_backend": "external_launcher"}, "distributed_executor_backend"),
    "KV offloading": ({"kv_offloading_size": 1.0}, "KV transfer or offloading"),
    "KV transfer": ({"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}}, "KV transfer or offloading"),
    "weights offloaded": ({"cpu_offload_gb": 1.0}, "offloaded weights"),
    "weights prefetched": ({"offload_group_size": 2, "offload_num_in_group": 1}, "offloaded weights"),
    "transformers": ({"model_impl": "transformers"}, "model_impl 'transformers'"),
    "prompts as embeddings": ({"enable_prompt_embeds": True}, "enable_prompt_embeds"),
    "weight transfer": ({"weight_transfer_config": {"backend": "ipc"}}, "weight_transfer_config"),
    "another worker": ({"worker_cls": "vllm.v1.worker.cpu_worker.CPUWorker"}, "not a subclass"),
    "non-causal": ({"attention_config": {"use_non_causal": True}}, "use_non_causal"),
    "thinking": ({"reasoning_parser": "qwen3"}, "reasoning_config"),
    "batches cut in two": ({"ubatch_size": 2}, "ubatch_size 2"),
    "a quantised checkpoint": (
        {
            "dtype": "float16",
            "hf_overrides": {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}},
        },
        "quantization 'auto_gptq'",
    ),
    # vLLM's own refusals on a CPU.
    "sleep": ({"enable_sleep_mode": True}, "Sleep mode is not supported"),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_proven_is_refused(model: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        made(model, **arguments)


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("VLLM_USE_V2_MODEL_RUNNER=1", "model runner V2"),
        ("TORCH_COMPILE_DISABLE=1", "TORCH_COMPILE_DISABLE=1"),
        ("VLLM_USE_BREAKABLE_CUDAGRAPH=1", "VLLM_USE_BREAKABLE_CUDAGRAPH=1"),
    ],
)
def test_variables_of_vllm_that_undo_it_are_refused(model: Path, monkeypatch: pytest.MonkeyPatch, variable: str, message: str) -> None:
    monkeypatch.setenv(*variable.split("="))
    with pytest.raises(Exception, match=message):
        made(model)


STOCK: dict[str, dict[str, Any]] = {
    "default": {"compilation_config": {}},
    "mode 2": {"compilation_config": {"mode": 2, "backend": "inductor"}},
    "eager": {"compilation_config": {}, "enforce_eager": True},
    "quantised": {"compilation_config": {}, "kv_cache_dtype": "fp8"},
}


@pytest.mark.parametrize("arguments", STOCK.values(), ids=STOCK)
def test_a_configuration_that_does_not_ask_is_vllms_own(model: Path, arguments: dict[str, Any]) -> None:
    """The same object, value by value, and the same environment, as from the platform without our wrapper."""
    platform = type(current_platform)
    wrapper = platform.__dict__["check_and_update_config"]
    before = dict(os.environ)

    def outcome() -> tuple[dict[str, Any], dict[str, str]]:
        os.environ.clear()
        os.environ.update(before)
        config = made(model, **arguments)
        config.instance_id = config.compilation_config.cache_dir = ""
        values = {part.name: str(getattr(config, part.name)) for part in fields(config)}
        return values, {name: value for name, value in os.environ.items() if name not in before}

    assert wrapper.__func__.bi_inductor is True
    with_plugin = outcome()
    try:
        platform.check_and_update_config = classmethod(getclosurevars(wrapper.__func__).nonlocals["stock"].__func__)
        without = outcome()
    finally:
        platform.check_and_update_config = wrapper
    assert with_plugin == without
    assert "bi_inductor" not in with_plugin[0]["parallel_config"]


class Reader:
    """A configuration that notes which of its fields are read; its parts do so too."""

    def __init__(self, given: Any, read: dict[str, set[str]], part: str = "vllm_config") -> None:
        self._given, self._read, self._part = given, read, part

    def __getattr__(self, name: str) -> Any:
        self._read.setdefault(self._part, set()).add(name)
        value = getattr(self._given, name)
        return Reader(value, self._read, name) if self._part == "vllm_config" and is_dataclass(value) else value


PARTS = (
    "model_config",
    "cache_config",
    "parallel_config",
    "scheduler_config",
    "compilation_config",
    "attention_config",
    "kernel_config",
    "offload_config",
)


@pytest.mark.parametrize("part", ["vllm_config", *PARTS])
def test_every_field_is_looked_at_or_known_to_have_no_part(model: Path, part: str) -> None:
    config, read = made(model), dict[str, set[str]]()
    assert list(configuration.refusals(Reader(config, read))) == []
    given = config if part == "vllm_config" else getattr(config, part)
    named = without_part(part)
    assert {field.name for field in fields(given)} - read.get(part, set()) - named == set()
    assert named <= {field.name for field in fields(given)}
