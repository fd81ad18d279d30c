"""Compiles programs for a GPU that need not be there, in a process that does nothing else."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bi_inductor import errors
from bi_inductor.targets.description import target_named
from bi_inductor.targets.report import TargetReport


def compile_program(program: str, target: str, *, dynamic: bool = False) -> TargetReport:
    """The kernels that ``torch.compile(model, backend="batch_invariant")`` would run on a target in inference, built and measured.

    Args:
        program: its name as ``bi_inductor.programs.load_program`` takes it. Model and inputs are made on the CPU (or on "meta", where they
            take no memory), and only their sizes, strides and dtypes are used.
        target: a name of ``TARGETS``.
        dynamic: with dynamic shapes.

    Raises:
        ValueError: another target; a program that cannot be loaded.
        MissingTritonError: triton is not installed.
        BatchInvariantError: as a compile would.
        RuntimeError: the model cannot be compiled for another reason; the text says which.
    """
    (found,) = compile_programs([program], target, dynamic=dynamic)
    if isinstance(found, Exception):
        raise found
    return found


def compile_programs(programs: Sequence[str], target: str, *, dynamic: bool = False) -> list[TargetReport | Exception]:
    """``compile_program`` for several in one process: what it returned or raised for each. Arguments and other errors as there."""
    target_named(target)
    if importlib.util.find_spec("triton") is None:
        raise errors.MissingTritonError("compiling for a GPU needs triton; install the extra gpu: pip install 'bi-inductor[gpu]'")
    # Line numbers in the machine code would make equal kernels of two files differ.
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1", "TRITON_DISABLE_LINE_INFO": "1"}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "bi_inductor.targets", *(["--dynamic"] if dynamic else []), target, str(result), *programs]
        run = subprocess.run(command, env=environment, capture_output=True, text=True)
        if not result.exists():
            last = run.stderr.strip()[-2000:]
            raise RuntimeError(f"the process that compiles for {target} ended with exit code {run.returncode}. Its last words: {last}")
        return [_found(data) for data in json.loads(result.read_text(encoding="utf-8"))]


def _found(data: dict[str, Any]) -> TargetReport | Exception:
    if "error" not in data:
        return TargetReport.from_json(data)
    kind: type[Exception] = getattr(errors, data["error"], ValueError if data["error"] == "ValueError" else RuntimeError)
    return kind(data["text"])
