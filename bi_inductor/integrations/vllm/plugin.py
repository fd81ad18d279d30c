"""The entry point ``vllm.general_plugins``: vLLM calls ``register`` once in every process of an engine."""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Lets the platform of vLLM see ``backend="batch_invariant"`` in a compilation config. Any other config passes as before.

    vLLM has no hook between a complete config and the start of the workers, so ``check_and_update_config`` of the platform's class
    (vllm.platforms.cpu.CpuPlatform, checked in vLLM 0.32.0) is wrapped.
    """
    from vllm.platforms import current_platform

    platform = type(current_platform)
    stock = platform.check_and_update_config
    if getattr(stock, "bi_inductor", False):
        return

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        from bi_inductor.integrations.vllm import configuration

        if configuration.asked(vllm_config):
            configuration.require_invariant(vllm_config)
            configuration.apply(vllm_config)
        stock.__func__(cls, vllm_config)

    check_and_update_config.bi_inductor = True  # type: ignore[attr-defined]  # marks the wrapper, so that a second call adds none
    platform.check_and_update_config = classmethod(check_and_update_config)
