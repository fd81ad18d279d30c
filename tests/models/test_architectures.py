"""Architectures of transformers keep their bits: ten of all kinds in every run, all with `make test-full`. Table: docs/models.md."""

from __future__ import annotations

import pytest

from tests.models.architectures import ARCHITECTURES
from tests.models.examination import PARTS, Examination, examine

BY_NAME = {architecture.name: architecture for architecture in ARCHITECTURES}

# Of each family one or two that compile fast. Other tests run a Llama, a GPT-2, a BERT and a T5.
CHOSEN = ("mistral", "electra", "distilbert", "mt5", "mixtral", "mamba", "resnet", "vit", "wav2vec2", "clip")


def failure(result: Examination) -> str:
    return f"{result.different} of {result.rows} rows differ; {result}"


@pytest.mark.parametrize("name", CHOSEN)
def test_ten_architectures(name: str) -> None:
    """In the graphs that torch.compile makes by itself: one for the first batch size, one for all others."""
    result = examine(BY_NAME[name], "default")
    assert result.passed, failure(result)


@pytest.mark.full
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", BY_NAME)
def test_every_architecture(name: str, part: str) -> None:
    result = examine(BY_NAME[name], part)
    assert result.passed, failure(result)


def test_names_are_unique_and_families_large_enough() -> None:
    assert len(BY_NAME) == len(ARCHITECTURES) >= 80
    families = [architecture.family for architecture in ARCHITECTURES]
    assert families.count("vision, with convolutions") >= 15
    assert families.count("audio") >= 5
    assert families.count("multimodal") >= 5
