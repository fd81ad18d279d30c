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

    @classmethod
    def is_cpu(cls) -> bool:
        return cls.device_type == "cpu"

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


def config(**changes: Any) -> SimpleNamespace:
    """A VllmConfig that is accepted, with changes: model_quantization="fp8" sets quantization of model_config."""
    parts: dict[str, Any] = {
        "compilation": {"mode": 2, "backend": "batch_invariant", "custom_ops": ["none"]},
        "model": {
            "dtype": torch.float32,
            "quantization": None,
            "logits_processors": None,
            "runner_type": "generate",
            **dict.fromkeys(("is_moe", "use_mla", "has_inner_state", "is_encoder_decoder", "is_multimodal_model"), False),
        },
        "parallel": {"world_size": 1, "worker_cls": "auto"},
        "cache": {"cache_dtype": "auto"},
    }
    whole: dict[str, Any] = {"lora_config": None, "speculative_config": None, "seen_by_stock": []}
    for name, value in changes.items():
        part, _, field = name.partition("_")
        if part in parts:
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
    ],
    ids=str,
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
    platform.device_type = "cuda"
    with pytest.raises(OptionError, match=r"platform cuda: .* the worker, the attention backend and the sampler here .* for CPUs"):
        configuration.require_invariant(config())
