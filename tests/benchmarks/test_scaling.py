"""`python -m benchmarks.scaling`: fitted exponents, memory of a call, plots, and one short run as a process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.curves import CURVES
from benchmarks.memory import CLEAR, peak_megabytes
from benchmarks.plot import PlotError, plot
from benchmarks.scaling import exponent

REPOSITORY = Path(__file__).resolve().parents[2]


def test_exponent_of_a_power() -> None:
    sizes = [1, 2, 4, 8, 16, 32]
    assert exponent(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5)
    # The time of the call itself, which rules the smaller half, is left out.
    assert exponent(sizes, [100, 100, 100, 8, 16, 32]) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="two points"):
        exponent([1], [1.0])


@pytest.mark.skipif(not CLEAR.exists(), reason="only Linux counts the peak")
def test_memory_of_a_call() -> None:
    """An output of 64 MB and an equally large intermediate that lives beside it; the control takes nothing."""
    x = torch.ones(2**24)
    peak_megabytes(lambda: None)
    nothing = peak_megabytes(lambda: None)
    one = peak_megabytes(lambda: x + 1)
    two = peak_megabytes(lambda: (x + 1).neg())
    assert nothing < 16
    assert one == pytest.approx(64, abs=16)
    assert two == pytest.approx(128, abs=16)


def test_points_ascend_and_fit_into_memory() -> None:
    assert len({curve.name for curve in CURVES}) == len(CURVES)
    for curve in CURVES:
        assert list(curve.points) == sorted(set(curve.points))
        assert len(curve.points) >= 3


MEASURED = {
    "name": "an op",
    "axis": "M",
    "points": [1, 2, 4],
    "milliseconds": {"stock": [1.0, 2.0, 4.0], "one-by-one": [None, 4.0, None], "ours": [1.0, 1.0, 1.0]},
    "megabytes": {"stock": [0.0, 0.0, 4.0], "one-by-one": [None, None, None], "ours": [0.0, 0.0, 0.0]},
    "exponents": {"stock": 1.0, "one-by-one": None, "ours": 0.0},
}


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_plot(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plots" / f"scaling.{suffix}"
    plot([MEASURED] * 4, "a CPU", path)
    assert path.stat().st_size > 1000


def test_plot_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotError, match=r"pip install 'bi-inductor\[bench\]'"):
        plot([MEASURED], "a CPU", tmp_path / "scaling.svg")
    with pytest.raises(PlotError, match=r"a plot is a \.svg or a \.png"):
        plot([MEASURED], "a CPU", tmp_path / "scaling.jpg")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.scaling", "--json", str(folder / "scaling.json"), *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_a_short_run(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", "softmax, rows", "--most", "16", "--rounds", "2", "--no-plot")
    assert done.returncode == 0, done.stderr
    (curve,) = json.loads((tmp_path / "scaling.json").read_text())["curves"]
    assert curve["points"] == [1, 4, 16]
    for name, values in curve["milliseconds"].items():
        assert [value is None for value in values] == [name == "one-by-one", False, False]
    assert curve["exponents"].keys() == {"stock", "one-by-one", "ours"}
    assert "exponent" in done.stdout


def test_a_curve_that_is_not_there(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", "nothing", "--no-plot")
    assert done.returncode == 2
    assert "'nothing' matches no curve of: MiniLM, 64 tokens;" in done.stderr
