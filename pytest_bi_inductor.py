"""The pytest plugin of bi_inductor: a fixture for the test suites of its users.

It stands beside the package, not in it: pytest loads it in every run, and importing the package would import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bi_inductor.check.result import CheckResult


@pytest.fixture(scope="session")
def assert_batch_invariant() -> Callable[..., CheckResult]:
    """Fails a test when a sample's result follows its batch: ``assert_batch_invariant(model, (inputs,), backend="inductor")``.

    Takes the arguments of ``bi_inductor.check`` and returns its result. The failure shows its table and the smallest failing batch.
    """

    def assert_invariant(fn: Callable[..., Any], inputs: Any, **arguments: Any) -> CheckResult:
        __tracebackhide__ = True
        import bi_inductor

        result = bi_inductor.check(fn, inputs, **{"shrink": True, **arguments})
        if not result:
            pytest.fail(str(result), pytrace=False)
        return result

    return assert_invariant
