"""The OpenAI-compatible server under changing load: one answer for one request. examples/vllm_server.py is what runs."""

from __future__ import annotations

import importlib
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

SCRIPT = Path(__file__).resolve().parents[2] / "examples/vllm_server.py"


def distinct_answers(*arguments: str) -> tuple[int, int]:
    """The numbers of requests and of distinct answers that the example prints."""
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=1200, check=False)
    found = re.search(r"^requests (\d+)  distinct answers (\d+)", done.stdout, re.MULTILINE)
    assert found, done.stdout[-2000:] + done.stderr[-6000:]
    print(f"{' '.join(arguments) or 'ours'}: {found.group()}")
    return int(found[1]), int(found[2])


def test_prompts_come_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is asked for, whose chunks follow the load, and the long ones beside it."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    example = importlib.import_module("vllm_server")
    generator = random.Random(0)
    lengths = [len(example.noise(generator)["prompt"]) for _ in range(100)]
    assert len(example.PROMPT["prompt"]) > example.STEP
    assert 10 < sum(length > 2 * example.STEP for length in lengths) < 50
    assert min(lengths) >= 5 and max(lengths) <= example.LONGEST


def test_one_answer_under_changing_load() -> None:
    assert distinct_answers() == (200, 1)


def test_control_stock_gives_several() -> None:
    requests, answers = distinct_answers("--stock", "--requests", "60")
    assert requests == 60
    assert answers > 1
