"""Logits processors of the user: seen where they let requests meet, reported where they cannot be seen, left as they are in any case."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from bi_inductor.errors import OpaqueOpWarning, SampleMixingError, SampleMixingWarning
from bi_inductor.integrations.vllm.processors import WatchedProcessor, watch
from tests.templates.rows import differences, randn

VOCABULARY = 50


class Temperatures:
    """A setting for each row of the batch, as vLLM keeps them."""

    def __init__(self) -> None:
        self.temperatures = torch.rand(64) + 0.5

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.div_(self.temperatures[: logits.shape[0], None])


class BelowTheBest(Temperatures):
    """The known fault: a threshold from the maximum of the whole batch."""

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.where(logits < logits.max() - 2, -torch.inf, logits)


class Forbidden(Temperatures):
    """Python's own state decides which rows are changed."""

    def __init__(self) -> None:
        self.tokens: dict[int, int] = {}

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for row, token in self.tokens.items():
            logits[row, token] = -torch.inf
        return logits


class Printing(Temperatures):
    """Does what no graph can hold."""

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        print(end="")
        return logits


def run(processor: Any, batches: tuple[int, ...] = (3, 5, 1, 4)) -> list[warnings.WarningMessage]:
    """What our packages warned of; the results have to be those of the processor by itself."""
    watched = WatchedProcessor(processor)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        for rows in batches:
            logits = randn(rows, VOCABULARY)
            if isinstance(processor, Forbidden):
                processor.tokens = {rows - 1: rows}
            assert differences(watched.apply(logits.clone()), processor.apply(logits.clone())) == 0
    return [warning for warning in given if warning.category.__module__.startswith("bi_inductor")]


def test_a_processor_of_rows_is_silent() -> None:
    assert run(Temperatures()) == []


def test_a_processor_that_lets_requests_meet_is_named_with_its_line() -> None:
    found = run(BelowTheBest())
    assert {warning.category for warning in found} == {SampleMixingWarning}
    assert "logits.max() - 2" in str(found[0].message) and "aten.max" in str(found[0].message)


def test_strict_makes_it_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BI_INDUCTOR_STRICT", "1")
    with pytest.raises(SampleMixingError, match=r"aten\.max"):
        WatchedProcessor(BelowTheBest()).apply(randn(3, VOCABULARY))


@pytest.mark.parametrize(("kind", "reason"), [(Printing, "Printing runs unseen"), (Forbidden, "takes another way in every batch")])
def test_a_processor_that_cannot_be_seen_is_reported_once(kind: type[Temperatures], reason: str) -> None:
    found = run(kind(), tuple(range(2, 16)))
    assert [warning.category for warning in found] == [OpaqueOpWarning]
    assert reason in str(found[0].message)


def test_only_processors_of_others_are_watched() -> None:
    """Also those that inherit ``apply`` from a class that is trusted."""

    class Inherited(Temperatures):
        pass

    processors = [Temperatures(), BelowTheBest(), Inherited()]
    watch(processors, (Temperatures,))
    assert [type(processor) for processor in processors] == [Temperatures, WatchedProcessor, Inherited]
    assert processors[1].temperatures.shape == (64,)
