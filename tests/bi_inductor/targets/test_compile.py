"""Models compile for GPUs that are not there: kernels with their registers, memory and machine code."""

import functools
import importlib.util
import json
import subprocess
import sys

import pytest
import torch

from bi_inductor import UnsupportedOpError, errors, targets
from bi_inductor.command_line import main
from bi_inductor.targets import TARGETS, TargetReport, compile_program
from bi_inductor.targets.compile import compile_programs

pytest.importorskip("triton")

pytestmark = pytest.mark.xdist_group("targets")

MODULE = "tests.bi_inductor.targets.programs"
PROGRAMS = {
    "sm_80": ["pointwise"],
    "sm_90": ["pointwise", "largest", "two_layers", "unsupported", "fails"],
    "sm_100": ["pointwise", "rows_1", "rows_2", "rows_16", "rows_17", "rows_4096"],
    "gfx942": ["pointwise", "largest"],
}


@functools.cache
def compiled(target):
    """What each of the target's programs was compiled to; one process a target, with dynamic shapes for one of them."""
    names = PROGRAMS[target]
    return dict(zip(names, compile_programs([f"{MODULE}:{name}" for name in names], target, dynamic=target == "sm_100"), strict=True))


@pytest.mark.parametrize("target", TARGETS)
def test_pointwise_kernels_contract_nothing(target):
    (kernel,) = compiled(target)["pointwise"].kernels
    multiplied, contracted = (r"v_(pk_)?mul_f32", r"v_(pk_)?(fma|mac|mad)") if target == "gfx942" else (r"mul\..*f32", r"fma|mad")
    assert kernel.instructions(multiplied) and not kernel.instructions(contracted)
    assert (kernel.spilled, kernel.calls) == (0, 1) and 0 < kernel.registers < 100
    assert kernel.bytes_moved == 4 * 8 * 96 * 4


def test_a_report(tmp_path):
    report = compiled("sm_90")["largest"]
    (kernel,) = report.kernels
    assert report.faults == [] and report.others == ()
    assert kernel.bytes_moved == 2 * 8 * 64 * 2 and kernel.shared_memory <= report.target.shared_memory and kernel.occupancy > 0
    # The pins are in force: one configuration, no contraction.
    assert kernel.alternatives == 0 and "'batch_invariant': True" in kernel.source and "'enable_fp_fusion': False" in kernel.source
    assert ".target sm_90" in kernel.assembly and "@triton.jit" in kernel.source
    assert TargetReport.from_json(json.loads(json.dumps(report.json()))) == report
    assert "kernels: 1; launches: 1; bytes moved: 2,048" in report.summary()


def test_amd_kernels_are_written_for_amd():
    (kernel,) = compiled("gfx942")["largest"].kernels
    assert "amdgcn-amd-amdhsa--gfx942" in kernel.assembly and "DeviceProperties(type='hip'" in kernel.source
    assert "warp_size=64" in kernel.source


def test_modules_and_inputs_by_name():
    report = compiled("sm_90")["two_layers"]
    assert len(report.kernels) == 1 and report.others == ()


def test_errors_are_those_of_a_compile():
    assert isinstance(compiled("sm_90")["unsupported"], UnsupportedOpError)
    assert "aten.igamma" in str(compiled("sm_90")["unsupported"])
    assert isinstance(compiled("sm_90")["fails"], RuntimeError) and "as planned" in str(compiled("sm_90")["fails"])


def test_one_binary_for_every_batch():
    sizes = (1, 2, 16, 17, 4096)
    kernels = [compiled("sm_100")[f"rows_{size}"].kernels[0] for size in sizes]
    assert [kernel.bytes_moved for kernel in kernels] == [2 * size * 96 * 4 for size in sizes]
    # A block of threads is larger for more elements, and no element follows its block. A number of rows divisible by 16 changes nothing.
    of = {size: (kernel.configuration, kernel.assembly) for size, kernel in zip(sizes, kernels, strict=True)}
    assert of[16] == of[17]
    assert len(set(of.values())) == len({configuration for configuration, _ in of.values()})


def test_the_command(capsys, tmp_path, monkeypatch):
    report = compiled("sm_90")["largest"]
    monkeypatch.setattr(targets, "compile_program", lambda program, target, dynamic: report)
    assert main(["compile", f"{MODULE}:largest", "--target", "sm_90", "--json", str(tmp_path / "report.json")]) == 0
    out = capsys.readouterr().out
    for word in ("triton_per_fused_amax_sub_0", "registers", "occupancy", "bytes moved", "NVIDIA H100 SXM"):
        assert word in out
    assert json.loads((tmp_path / "report.json").read_text())["target"] == "sm_90"


def test_bad_input_is_one_line(capsys, monkeypatch):
    assert main(["compile", f"{MODULE}:largest", "--target", "sm_70"]) == 2
    assert capsys.readouterr().err == "bi-inductor: error: target: got 'sm_70'; allowed are sm_80, sm_90, sm_100, gfx942\n"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["compile", f"{MODULE}:largest", "--target", "sm_90"]) == 2
    assert capsys.readouterr().err == (
        "bi-inductor: error: compiling for a GPU needs triton; install the extra gpu: pip install 'bi-inductor[gpu]'\n"
    )
    with pytest.raises(errors.MissingTritonError):
        compile_program(f"{MODULE}:largest", "sm_90")


def test_nothing_is_left_in_this_process():
    compiled("gfx942")
    assert not torch.cuda.is_available() or torch.cuda.device_count() > 0
    assert torch.version.hip is None or torch.cuda.is_available()
    # The description is read without triton.
    code = "import sys, bi_inductor.targets; print('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
