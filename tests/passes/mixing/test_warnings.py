"""What a user sees: one warning for each op and line, an error under strict, silence by allow; the report of explain."""

from __future__ import annotations

import warnings
from typing import Any

import expecttest
import pytest
import torch
from torch import Tensor

import bi_inductor
from bi_inductor.options import Options
from bi_inductor.passes.mixing.report import require_unmixed


def centred(x: Tensor) -> Tensor:
    y = x.view(-1, 4) @ torch.ones(4, 4)
    z = y - y.mean(0) - y.mean(0) * 2
    return z / z.amax()


def warned(fn: Any, category: type[Warning], **options: Any) -> list[str]:
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        torch.compile(fn, backend="batch_invariant", options=options)(torch.randn(3, 2, 4))
    return [str(warning.message).split(" at ")[0].splitlines()[-1].strip() for warning in caught if warning.category is category]


def test_one_warning_for_each_op_and_line() -> None:
    assert warned(centred, bi_inductor.SampleMixingWarning) == ["aten.mean(float32[6, 4])", "aten.amax(float32[6, 4])"]
    assert warned(centred, bi_inductor.SampleMixingWarning, allow=("aten.mean",)) == ["aten.amax(float32[6, 4])"]


def test_strict_raises_for_all_of_them() -> None:
    with pytest.raises(bi_inductor.SampleMixingError, match=r"(?s)aten.mean.*y.mean\(0\).*aten.amax.*allow': \('aten.amax', 'aten.mean'\)"):
        warned(centred, bi_inductor.SampleMixingWarning, strict=True)
    assert warned(centred, bi_inductor.SampleMixingWarning, strict=True, allow=("aten.mean", "aten.amax")) == []


def test_explain_lists_them_with_the_chain() -> None:
    with torch.no_grad():
        explanation = bi_inductor.explain(centred, torch.randn(3, 2, 4))
    assert "3 ops mixing samples" in explanation.verdict
    lines = [line.split(" at ")[0] for line in explanation.text().splitlines() if line.startswith("  mixes samples: aten")]
    expecttest.assert_expected_inline(
        "\n".join(lines),
        """\
  mixes samples: aten.mean.dim(float32[6, 4], [0]) -> float32[4]: reduces dim 0, which holds the samples; samples: x [batch, 2, 4] -> view [batch * 2, 4]
  mixes samples: aten.mean.dim(float32[6, 4], [0]) -> float32[4]: reduces dim 0, which holds the samples; samples: x [batch, 2, 4] -> view [batch * 2, 4]
  mixes samples: aten.amax.default(float32[6, 4]) -> float32[]: reduces dim 0, which holds the samples; samples: x [batch, 2, 4] -> view [batch * 2, 4]""",  # noqa: E501  # a report's lines
    )


def noisy(x: Tensor) -> Tensor:
    y = torch.nn.functional.dropout(x) + torch.rand_like(x)
    return y + torch.multinomial(x.flatten(1).softmax(-1), 8).view(x.shape)


def test_random_ops_are_reported_once_for_each_line() -> None:
    assert sorted(warned(noisy, bi_inductor.RandomOpWarning)) == ["aten.multinomial(float32[3, 8])", "prims.inductor_random(int64[])"]
    assert warned(noisy, bi_inductor.RandomOpWarning, allow=("prims.inductor_random", "aten.multinomial")) == []
    assert issubclass(bi_inductor.RandomOpWarning, bi_inductor.SampleMixingWarning)
    with pytest.raises(bi_inductor.SampleMixingError, match=r"draws random numbers by the place of an element"):
        warned(noisy, bi_inductor.RandomOpWarning, strict=True)


def test_nothing_found_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_unmixed([], Options(strict=True))
