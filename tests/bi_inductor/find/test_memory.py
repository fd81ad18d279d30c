"""What `find` needs beside the model: a few of its values, however many ops there are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the peak of a part of a process")
def test_memory_does_not_grow_with_the_ops() -> None:
    """A hundred ops on values of 16 MB: eager has four of them at a time. It took 1.3 GB when each digest was a tensor of its own."""
    command = [sys.executable, "-m", "benchmarks.find_cost", "--peak", "pointwise, 64 x 65536", "find"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert 0 < int(done.stdout) < 20 * 2**24
