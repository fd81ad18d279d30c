"""Engines are started once for all tests that look at their answers."""

from __future__ import annotations

import pytest

from tests.vllm.plans import Engines


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    return Engines(tmp_path_factory.mktemp("engines"))
