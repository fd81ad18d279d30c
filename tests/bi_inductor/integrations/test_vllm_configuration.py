"""What vLLM may be asked for, without vLLM: its modules are stood in for by the few names that are read. `make test-vllm` has the rest."""

import os
import sys
import types
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import bi_inductor
from bi_inductor.errors import OptionError
from bi_inductor.integrations.vllm import configuration, plugin


class Platform:
    """As much of vllm.platforms.cpu.CpuPlatform as the plugin sees."""

    device_type = "cpu"
    zentorch = False

    @classmethod
    def is_cpu(cls) -> bool:
        return cls.device_type == "cpu"

    @classmethod
    def is_zen_cpu(cls) -> bool:
        return cls.zentorch

    @classmethod
    def check_and_update_config(cls, config: Any) -> None:
        config.seen_by_stock.append(cls)
        if config.parallel_config.worker_cls == "auto":
            config.parallel_config.worker_cls = "vllm.v1.worker.cpu_worker.CPUWorker"


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> type[Platform]:
    """A fresh platform class behind modules named vllm and vllm.platforms."""
    own = type("CpuPlatform", (Platform,), {"check_and_update_config": Platform.__dict__["check_and_update_config"]})
    vllm, platforms = types.ModuleType("vllm"), types.ModuleType("vllm.platforms")
    vllm.__version__, platforms.current_platform = "0.32.0+cpu", own()  # type: ignore[attr-defined]  # modules made here
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    for variable in ("VLLM_BATCH_INVARIANT", "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_USE_AOT_COMPILE"):
        monkeypatch.setenv(variable, "1")
        monkeypatch.delenv(variable)
    return own


OF_A_MODEL = (
    "is_moe",
    "use_mla",
    "has_inner_state",
    "is_encoder_decoder",
    "is_multimodal_model",
    "enable_prompt_embeds",
    "enable_sleep_mode",
    "use_fp64_gumbel",
    "return_sampling_mask",
    "enable_trace_replay",
)
NONE_GIVEN = tuple(
    f"{part}_config"
    for part in ("lora", "speculative", "kv_transfer", "ec_transfer", "watermark", "diffusion", "reasoning", "weight_transfer")
)


def config(**changes: Any) -> SimpleNamespace:
    """A VllmConfig that is accepted, with changes: model_quantization="fp8" sets quantization of model_config."""
    parts: dict[str, Any] = {
        "compilation": {
            "mode": 2,
            "backend": "batch_invariant",
            "custom_ops": ["none"],
            "dynamic_shapes_config": SimpleNamespace(type="backed", evaluate_guards=False),
            "inductor_compile_config": {},
        },
        "kernel": {"linear_backend": "auto", "ir_op_priority": SimpleNamespace(rms_norm=["native"])},
        "attention": {"use_non_causal": False},
        "model": {
            "dtype": torch.float32,
            "head_dtype": torch.float32,
            "quantization": None,
            "quantization_config": None,
            "logits_processors": None,
            "runner_type": "generate",
            "using_transformers_backend": lambda: False,
            **dict.fromkeys(OF_A_MODEL, False),
        },
        "parallel": {
            "world_size": 1,
            "data_parallel_size": 1,
            "distributed_executor_backend": "mp",
            "ubatch_size": 0,
            "worker_cls": "auto",
        },
        "cache": {"cache_dtype": "auto", "kv_sharing_fast_prefill": False, "kv_offloading_size": None},
        "offload": {"uva": SimpleNamespace(cpu_offload_gb=0.0), "prefetch": SimpleNamespace(offload_group_size=0)},
    }
    whole: dict[str, Any] = {**dict.fromkeys(NONE_GIVEN), "use_v2_model_runner": False, "seen_by_stock": []}
    for name, value in changes.items():
        part, _, field = name.partition("_")
        if part in parts and name not in whole:
            parts[part][field] = value
        else:
            whole[name] = value
    return SimpleNamespace(**whole, **{f"{part}_config": SimpleNamespace(**fields) for part, fields in parts.items()})


def test_the_dictionary_for_vllm() -> None:
    assert bi_inductor.vllm_config() == {"mode": 2, "backend": "batch_invariant", "custom_ops": ["none"]}
    assert bi_inductor.vllm_config(cudagraph_mode="NONE")["cudagraph_mode"] == "NONE"
    with pytest.raises(OptionError, match="mode: given 3; a batch-invariant run needs 2"):
        bi_inductor.vllm_config(mode=3)


def test_a_config_that_asks_gets_our_worker(platform: type[Platform]) -> None:
    plugin.register()
    asked = config()
    platform.check_and_update_config(asked)
    assert asked.seen_by_stock == [platform]
    assert asked.parallel_config.worker_cls == configuration.WORKER
    assert os.environ["VLLM_USE_AOT_COMPILE"] == "0"


def test_a_config_that_does_not_ask_is_left_alone(platform: type[Platform]) -> None:
    plugin.register()
    stock = config(compilation_backend="inductor", compilation_mode=0, model_quantization="fp8")
    platform.check_and_update_config(stock)
    assert stock.seen_by_stock == [platform]
    assert stock.parallel_config.worker_cls == "vllm.v1.worker.cpu_worker.CPUWorker"
    assert "VLLM_USE_AOT_COMPILE" not in os.environ


def test_registering_twice_wraps_once(platform: type[Platform]) -> None:
    plugin.register()
    once = platform.__dict__["check_and_update_config"]
    plugin.register()
    assert platform.__dict__["check_and_update_config"] is once


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"compilation_mode": 0}, 'mode 0: nothing is compiled .*; use "mode": 2'),
        ({"compilation_mode": None}, "mode 0"),
        ({"compilation_mode": 1}, "mode 1: vLLM does not compile on CPU"),
        ({"compilation_mode": 3}, "mode 3: vLLM replaces the backend"),
        ({"compilation_custom_ops": ["all"]}, r'use "custom_ops": \["none"\]'),
        ({"compilation_custom_ops": ["none", "+rms_norm"]}, "kernels of vLLM stay"),
        ({"model_quantization": "awq"}, "quantization 'awq'"),
        ({"lora_config": "an adapter"}, "LoRA"),
        ({"speculative_config": "a draft model"}, "speculative decoding"),
        ({"cache_cache_dtype": "fp8"}, "kv_cache_dtype 'fp8'"),
        ({"parallel_world_size": 2}, "2 ranks"),
        ({"model_runner_type": "pooling"}, "runner 'pooling'"),
        ({"model_is_moe": True}, "mixture of experts"),
        ({"model_use_mla": True}, "MLA"),
        ({"model_has_inner_state": True}, "Mamba"),
        ({"model_is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_is_multimodal_model": True}, "multimodal"),
        ({"model_head_dtype": torch.bfloat16}, r"head_dtype torch\.bfloat16: .* than the model \(torch\.float32\)"),
        ({"model_using_transformers_backend": lambda: True}, "model_impl 'transformers': .* use 'vllm'"),
        ({"model_enable_prompt_embeds": True}, "enable_prompt_embeds"),
        ({"model_enable_sleep_mode": True}, "enable_sleep_mode"),
        ({"model_use_fp64_gumbel": True}, "use_fp64_gumbel: .* Philox"),
        ({"model_return_sampling_mask": True}, "return_sampling_mask"),
        ({"model_enable_trace_replay": True}, "enable_trace_replay"),
        ({"attention_use_non_causal": True}, "use_non_causal: there is causal attention only"),
        ({"compilation_dynamic_shapes_config": SimpleNamespace(type="unbacked", evaluate_guards=False)}, "type 'unbacked'"),
        ({"compilation_dynamic_shapes_config": SimpleNamespace(type="backed", evaluate_guards=True)}, "evaluate_guards True"),
        ({"compilation_inductor_compile_config": {"max_autotune": True}}, "max_autotune"),
        ({"kernel_linear_backend": "torch"}, "linear_backend 'torch'"),
        ({"kernel_ir_op_priority": SimpleNamespace(rms_norm=["vllm_c", "native"])}, "ir_op_priority {'rms_norm': 'vllm_c'}"),
        ({"cache_kv_sharing_fast_prefill": True}, "kv_sharing_fast_prefill"),
        ({"offload_uva": SimpleNamespace(cpu_offload_gb=1.0)}, "offloaded weights"),
        ({"offload_prefetch": SimpleNamespace(offload_group_size=2)}, "offloaded weights"),
        ({"parallel_data_parallel_size": 2}, "data_parallel_size 2: .* a server for each"),
        ({"parallel_ubatch_size": 2}, "ubatch_size 2"),
        ({"model_quantization_config": {"linear": "fp8"}}, "quantization {'linear': 'fp8'}: "),
        ({"parallel_distributed_executor_backend": "ray"}, "distributed_executor_backend 'ray': .* use 'mp'"),
        ({"cache_kv_offloading_size": 1.0}, "KV transfer or offloading"),
        ({"kv_transfer_config": "a connector"}, "KV transfer or offloading"),
        ({"ec_transfer_config": "a connector"}, "EC transfer"),
        ({"watermark_config": "a key"}, "watermarks"),
        ({"diffusion_config": "a canvas"}, "diffusion"),
        ({"reasoning_config": "a budget"}, "reasoning_config"),
        ({"weight_transfer_config": "a trainer"}, "weight_transfer_config: .* reload_weights"),
        ({"use_v2_model_runner": True}, "model runner V2: .* VLLM_USE_V2_MODEL_RUNNER=0"),
    ],
    # Not of the change: a function's text is its address, which differs between the processes of pytest-xdist.
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_what_cannot_be_invariant_is_refused_before_anything_starts(platform: type[Platform], change: dict[str, Any], message: str) -> None:
    plugin.register()
    refused = config(**change)
    with pytest.raises(OptionError, match=message):
        platform.check_and_update_config(refused)
    assert refused.seen_by_stock == []


def test_every_reason_is_named_at_once(platform: type[Platform]) -> None:
    with pytest.raises(OptionError) as refused:
        configuration.require_invariant(config(compilation_mode=0, model_quantization="awq"))
    assert len(str(refused.value).splitlines()) == 3


@pytest.mark.parametrize("variable", ["VLLM_BATCH_INVARIANT=1", "VLLM_ENABLE_V1_MULTIPROCESSING=0"])
def test_variables_that_contradict_are_refused(platform: type[Platform], monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(*variable.split("="))
    with pytest.raises(OptionError, match=variable.split("=")[0]):
        configuration.require_invariant(config())


def test_another_version_and_another_platform_are_refused(platform: type[Platform]) -> None:
    sys.modules["vllm"].__version__ = "0.31.2"  # type: ignore[attr-defined]  # a module made by the fixture
    with pytest.raises(OptionError, match=r"vLLM 0\.31\.2: written for and tested with 0\.32\.0"):
        configuration.require_invariant(config())
    sys.modules["vllm"].__version__ = "0.32.1"  # type: ignore[attr-defined]  # a module made by the fixture
    platform.zentorch = True
    with pytest.raises(OptionError, match=r"zentorch: .* uninstall zentorch"):
        configuration.require_invariant(config())
    platform.device_type = "cuda"
    with pytest.raises(OptionError, match=r"platform cuda: .* the worker, the attention backend and the sampler here .* for CPUs"):
        configuration.require_invariant(config())
