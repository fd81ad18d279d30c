"""What of a model vLLM leaves outside of the compiled graph: found when it is loaded."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bi_inductor.errors import UnsupportedOpError

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

from vllm.compilation.wrapper import TorchCompileWithNoGuardsWrapper  # noqa: E402  # only where vLLM is there
from vllm.model_executor.layers.logits_processor import LogitsProcessor  # noqa: E402  # as above
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead  # noqa: E402  # as above

from bi_inductor.integrations.vllm.models import require_known_parts  # noqa: E402  # as above


class Layers(TorchCompileWithNoGuardsWrapper, nn.Module):  # type: ignore[misc]  # vLLM has no types
    """What vLLM makes of a class that it is told to compile."""

    def __init__(self, do_not_compile: bool) -> None:
        nn.Module.__init__(self)
        self.do_not_compile = do_not_compile
        self.embedding, self.up = nn.Embedding(8, 4), nn.Linear(4, 4)


class Head(ParallelLMHead):  # type: ignore[misc]  # as above
    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.weight = nn.Parameter(torch.ones(8, 4))


class Processor(LogitsProcessor):  # type: ignore[misc]  # as above
    def __init__(self, soft_cap: float | None) -> None:
        nn.Module.__init__(self)
        self.soft_cap = soft_cap


def model(do_not_compile: bool = False, soft_cap: float | None = None, between: bool = False) -> nn.Module:
    whole = nn.Module()
    whole.model, whole.lm_head, whole.logits_processor = Layers(do_not_compile), Head(), Processor(soft_cap)
    if between:
        whole.norm = nn.LayerNorm(4)
    return whole


def test_a_compiled_model_with_a_head_is_accepted() -> None:
    require_known_parts(model())


def test_a_model_that_vllm_does_not_compile_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match=r"does not compile model\.embedding, model\.up, .* such as LlamaForCausalLM"):
        require_known_parts(model(do_not_compile=True))


def test_weights_between_the_layers_and_the_head_are_refused() -> None:
    with pytest.raises(UnsupportedOpError, match=r"does not compile norm, so"):
        require_known_parts(model(between=True))


def test_capped_logits_are_refused() -> None:
    with pytest.raises(UnsupportedOpError, match=r"caps its logits by torch's own tanh .* without final_logit_softcapping"):
        require_known_parts(model(soft_cap=30.0))
