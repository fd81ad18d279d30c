"""The fixture of the pytest plugin, in a run of pytest of its own."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

SUITE = """
import sys

# Loading the plugin must not load torch: users' settings for it come later.
assert "torch" not in sys.modules
import torch

def test_invariant(assert_batch_invariant):
    assert assert_batch_invariant(torch.relu, torch.randn(4, 3), backend="eager").invariant

def test_variant(assert_batch_invariant):
    assert_batch_invariant(lambda x: -x if x.shape[0] > 1 else x.clone(), torch.randn(4, 3), backend="eager")
"""


def test_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-p", "pytest_bi_inductor", "-p", "no:cacheprovider", "-q", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "eager: not batch-invariant" in done.stdout
    assert "smallest failing batch: samples [0, 0]" in done.stdout
