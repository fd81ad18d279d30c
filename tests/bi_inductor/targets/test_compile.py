"""Models compile for GPUs that are not there: kernels with their registers, memory and machine code."""

import dataclasses
import functools
import importlib.util
import json
import re
import subprocess
import sys

import pytest
import torch

import bi_inductor
from bi_inductor import UnsupportedOpError, errors, targets
from bi_inductor.command_line import main
from bi_inductor.programs import load_program
from bi_inductor.targets import TARGETS, TargetReport, compile_program
from bi_inductor.targets.compile import compile_programs
from bi_inductor.targets.description import configuration_text
from bi_inductor.templates.attention.configurations import configuration as attention_configuration
from bi_inductor.templates.matmul.configurations import configuration
from tests.bi_inductor.targets.fma import ELEMENTWISE_FMA, unaccounted, why
from tests.bi_inductor.targets.programs import HEAD_DIMS
from tests.bi_inductor.test_operators import NAMES

pytest.importorskip("triton")

pytestmark = pytest.mark.xdist_group("targets")

MODULE = "tests.bi_inductor.targets.programs"
BLOCKS = ["llama_block", "bert_block", "sums"]
SIZES = (1, 2, 16, 17, 4096)
ROWS = [f"rows_{size}" for size in SIZES]
SAMPLES = [f"{kind}_{size}" for kind in ("static", "dynamic") for size in SIZES]
# torch.ops.bi_inductor.*, without torch's own kernels one sample at a time.
OPERATORS = [f"operator_{name}" for name in NAMES]
# Numbers of columns for every row of the matmul's table.
COLUMNS = (256, 4096, 16384)
COMMON = [
    *(f"{kind}_{columns}" for kind in ("products", "eights") for columns in COLUMNS),
    "pointwise",
    "experts",
    "eights",
    "eights_of_amd",
    "into_eights",
    "scans",
    "scatters",
    "blocks_of_a_cache",
    "shared_keys",
    "every_attention",
    "every_head_dim",
    "rest_of_templates",
    "flex",
    "elementwise",
    *BLOCKS,
]
PROGRAMS = {
    "sm_80": COMMON,
    "sm_90": [
        *COMMON,
        "largest",
        "two_layers",
        "unsupported",
        "one_sample",
        "views_of_views",
        "fails",
        *ROWS,
        *SAMPLES,
        *OPERATORS,
    ],
    "sm_100": COMMON,
    "gfx942": [*COMMON, "largest"],
}
# Each takes a process and 20 seconds; two of the four are compiled for by `make test-full` only.
EVERY_TARGET = [pytest.param(name, marks=pytest.mark.full) if name in ("sm_80", "sm_100") else name for name in TARGETS]
MATRIX_INSTRUCTIONS = {"sm_80": r"mma\.sync", "sm_90": r"wgmma\.mma_async", "sm_100": r"tcgen05\.mma", "gfx942": "v_mfma"}


@functools.cache
def compiled(target):
    """What each of the target's programs was compiled to; one process a target."""
    names = PROGRAMS[target]
    return dict(zip(names, compile_programs([f"{MODULE}:{name}" for name in names], target), strict=True))


@pytest.mark.parametrize("target", EVERY_TARGET)
def test_pointwise_kernels_contract_nothing(target):
    (kernel,) = compiled(target)["pointwise"].kernels
    multiplied, contracted = (r"v_(pk_)?mul_f32", r"v_(pk_)?(fma|mac|mad)") if target == "gfx942" else (r"mul\..*f32", r"fma|mad")
    assert kernel.instructions(multiplied) and not kernel.instructions(contracted)
    assert (kernel.spilled, kernel.calls) == (0, 1) and 0 < kernel.registers < 100
    assert kernel.bytes_moved == 4 * 8 * 96 * 4


@pytest.mark.parametrize("target", EVERY_TARGET)
def test_no_kernel_spills_or_needs_more_shared_memory_than_there_is(target):
    # Of the programs that are compiled for every target; float8 results are refused on sm_80.
    reports = {name: report for name, report in compiled(target).items() if name in COMMON and isinstance(report, TargetReport)}
    assert {name: report.faults for name, report in reports.items() if report.faults} == {}
    templates = [kernel for report in reports.values() for kernel in report.kernels if "_tem_" in kernel.name]
    assert len(templates) > 60 and all(kernel.occupancy > 0 for kernel in templates)


@pytest.mark.parametrize("target", EVERY_TARGET)
def test_blocks_fit_every_target(target):
    for name in BLOCKS:
        report = compiled(target)[name]
        assert report.faults == [] and report.others == ()
        assert len(report.kernels) >= 7 and all(kernel.occupancy > 0 for kernel in report.kernels)
        for kernel in report.kernels:
            # Templates are held to what Inductor says of its own kernels: an epilogue computes what a kernel of its own would.
            assert "'enable_fp_fusion': False" in kernel.source and "'disable_ftz': True" in kernel.source, kernel.name
            assert kernel.alternatives == 0 or "triton_poi" in kernel.name


@pytest.mark.parametrize("target", EVERY_TARGET)
def test_matrices_go_through_matrix_units_and_float32_through_fma(target):
    for name in ("llama_block", "bert_block"):
        products = [kernel for kernel in compiled(target)[name].kernels if "matmul" in kernel.name or "tem_fused_attention" in kernel.name]
        assert len(products) >= 5
        for kernel in products:
            assert kernel.instructions(MATRIX_INSTRUCTIONS[target]), kernel.name
    (product,) = [kernel for kernel in compiled(target)["sums"].kernels if "_mm_" in kernel.name]
    # AMD's matrix units take float32 as it is.
    assert bool(product.instructions(MATRIX_INSTRUCTIONS[target])) is (target == "gfx942")


@pytest.mark.parametrize("target", EVERY_TARGET)
def test_every_tile_fits_its_target(target):
    for kind, dtype, count in (("products", torch.bfloat16, 4), ("eights", torch.float8_e4m3fn, 1)):
        found = set()
        for columns in COLUMNS:
            tile, report = configuration(target, dtype, columns), compiled(target)[f"{kind}_{columns}"]
            kernels = [kernel for kernel in report.kernels if "BLOCK_M : tl.constexpr" in kernel.source]
            assert len(kernels) == count
            for kernel in kernels:
                assert kernel.alternatives == 0 and kernel.occupancy > 0 and kernel.spilled == 0, kernel.name
                sizes = configuration_text(tile.constants, tile.warps, tile.stages).split(", ")
                assert set(sizes) <= set(kernel.configuration.split(", ")), kernel.name
                found.update(kernel.instructions(MATRIX_INSTRUCTIONS[target] + (r"|mma\.sync" if target.startswith("sm_") else "")))
        # As many products are added at a time in every tile. On sm_90 the name tells columns too.
        assert len({re.sub(r"\.m64n\d+k", ".m64nXk", name) for name in found}) == 1, found


@pytest.mark.parametrize("target", EVERY_TARGET)
def test_grouped_matmuls_are_built_for_every_target(target):
    report = compiled(target)["experts"]
    kernels = [kernel for kernel in report.kernels if "grouped_matmul" in kernel.name]
    assert len(kernels) == 6 and report.others == ()
    for kernel in kernels:
        assert kernel.alternatives == 0 and kernel.occupancy > 0, kernel.name
        float32 = "tl.float32" in kernel.source.partition("ELEMENT : tl.constexpr = ")[2][:10]
        # As in matmul, float32 goes through matrix units on AMD alone.
        assert bool(kernel.instructions(MATRIX_INSTRUCTIONS[target])) is (not float32 or target == "gfx942"), kernel.name


@pytest.mark.parametrize("target", EVERY_TARGET)
def test_products_of_eight_bits_are_built_for_every_target(target):
    report = compiled(target)["eights"]
    assert report.faults == []
    # Triton does not know float8_e4m3fn on sm_80: kernels take its bytes there, by a view.
    assert set(report.others) == ({"torch.ops.aten.permute.default", "torch.ops.aten.view.dtype"} if target == "sm_80" else set())
    kernels = [kernel for kernel in report.kernels if "SCALE_A" in kernel.source or "MULTIPLIED" in kernel.source]
    assert len(kernels) == 5
    for kernel in kernels:
        assert kernel.alternatives == 0 and kernel.occupancy > 0, kernel.name
        found = set(kernel.instructions(MATRIX_INSTRUCTIONS[target] + (r"|mma\.sync" if target.startswith("sm_") else "")))
        # Scales and bias are rounded each for itself; erf of gelu is made of fma.
        contracted = kernel.instructions(r"fma\.\w+\.(ftz\.)?f32|v_(pk_)?(fma|mac|mad)_f32")
        assert not contracted or "gelu" in kernel.name, kernel.name
        # float8 is multiplied as float16, int8 as itself or as the bfloat16 beside it.
        assert found and not any(word in name for name in found for word in ("e4m3", "e5m2", "fp8", "bf8", "f8f6f4")), (kernel.name, found)


@pytest.mark.parametrize("target", EVERY_TARGET)
def test_float8_of_amd_is_read_everywhere(target):
    report = compiled(target)["eights_of_amd"]
    (kernel,) = report.kernels
    assert kernel.alternatives == 0 and kernel.occupancy > 0 and kernel.spilled == 0
    assert any(kernel.instructions(MATRIX_INSTRUCTIONS[target]))
    assert report.faults == [] and ("torch.ops.aten.view.dtype" in report.others) is (target != "gfx942")


@pytest.mark.parametrize("target", EVERY_TARGET)
def test_results_of_float8_are_written_where_triton_knows_them(target):
    found = compiled(target)["into_eights"]
    if target == "sm_80":
        assert isinstance(found, UnsupportedOpError)
        assert "results of torch.float8_e4m3fn cannot be written on sm_80" in str(found) and "out_dtype" in str(found)
    else:
        assert found.faults == [] and found.others == () and [kernel.alternatives for kernel in found.kernels] == [0]


@pytest.mark.parametrize("target", EVERY_TARGET)
def test_paged_attention_is_built_for_every_target(target):
    report = compiled(target)["blocks_of_a_cache"]
    assert report.faults == [] and report.others == ()
    kernels = [kernel for kernel in report.kernels if "_tem_" in kernel.name]
    assert len(kernels) == 2
    for kernel in kernels:
        float32 = "tl.float32" in kernel.source.partition("ELEMENT : tl.constexpr = ")[2][:10]
        assert kernel.alternatives == 0 and kernel.occupancy > 0, kernel.name
        assert bool(kernel.instructions(MATRIX_INSTRUCTIONS[target])) is (not float32 or target == "gfx942"), kernel.name


@pytest.mark.parametrize("target", EVERY_TARGET)
def test_keys_are_shared_by_the_matrix_units_of_every_target(target):
    report = compiled(target)["shared_keys"]
    assert report.faults == [] and report.others == ()
    parts = [kernel for kernel in report.kernels if "PART : tl.constexpr" in kernel.source]
    merges = [kernel for kernel in report.kernels if "UNROLL : tl.constexpr" in kernel.source]
    assert len(parts) == 3 and len(merges) >= 2
    for kernel in parts:
        # The instructions of the kernel that has all keys, or its bits would be others.
        assert kernel.alternatives == 0 and kernel.instructions(MATRIX_INSTRUCTIONS[target]), kernel.name
    for kernel in merges:
        assert kernel.alternatives == 0 and not kernel.instructions(MATRIX_INSTRUCTIONS[target]), kernel.name


@pytest.mark.parametrize("target", EVERY_TARGET)
def test_attention_of_every_head_dim_goes_through_matrix_units(target):
    kernels = [kernel for kernel in compiled(target)["every_head_dim"].kernels if "_tem_" in kernel.name]
    found = []
    for kernel in kernels:
        dtype, dim = (re.search(rf"{name} : tl.constexpr = (?:tl\.)?(\w+)", kernel.source)[1] for name in ("ELEMENT", "HEAD_DIM"))
        found.append((dtype, int(dim)))
        # wgmma takes 64 rows at least.
        narrow = attention_configuration(target, getattr(torch, dtype), int(dim)).block_m < 64
        assert kernel.instructions(r"mma\.sync" if narrow and target == "sm_90" else MATRIX_INSTRUCTIONS[target]), (kernel.name, dim)
    # Attention, and attention over a cache.
    assert sorted(found) == sorted([(dtype, dim) for dtype in ("bfloat16", "float16") for dim in HEAD_DIMS] * 2)


@pytest.mark.parametrize("target", EVERY_TARGET)
def test_templates_of_other_dtypes_are_built_for_every_target(target):
    kernels = [kernel for kernel in compiled(target)["rest_of_templates"].kernels if "_tem_" in kernel.name]
    names = " ".join(kernel.name for kernel in kernels)
    counts = {"layer_norm": 1, "rms_norm": 1, "group_norm": 1, "sample_sum": 2, "convolution": 3, "bmm": 1, "gelu": 1, "mm_t": 2}
    for word, count in counts.items():
        assert names.count(word) >= count, (word, names)
    assert all(kernel.alternatives == 0 for kernel in kernels)
    (halves,) = [kernel for kernel in kernels if "convolution" in kernel.name and "ELEMENT : tl.constexpr = tl.float16" in kernel.source]
    assert halves.instructions(MATRIX_INSTRUCTIONS[target])


@pytest.mark.parametrize("target", EVERY_TARGET)
def test_scans_contract_nothing(target):
    report = compiled(target)["scans"]
    assert report.faults == [] and report.others == ()
    kernels = [kernel for kernel in report.kernels if "_tem_" in kernel.name]
    assert len(kernels) == 4
    for kernel in kernels:
        assert kernel.alternatives == 0
        # The functions of logcumsumexp are made of fma.
        contracted = kernel.instructions(r"fma\.\w+\.(ftz\.)?f(32|64)|v_(pk_)?(fma|mac|mad)_f(32|64)")
        assert bool(contracted) is ("logcumsumexp" in kernel.name), kernel.name


@pytest.mark.parametrize("target", EVERY_TARGET)
def test_scatters_have_no_atomic_operations(target):
    report = compiled(target)["scatters"]
    assert report.faults == [] and report.others == ()
    kernels = [kernel for kernel in report.kernels if "_tem_" in kernel.name]
    assert len(kernels) == 8
    for kernel in kernels:
        assert kernel.alternatives == 0 and not kernel.instructions(r"atom|red\.|global_atomic"), kernel.name


@pytest.mark.parametrize("target", EVERY_TARGET)
def test_generated_kernels_contract_nothing(target):
    reports = {name: compiled(target)[name] for name in COMMON}
    generated = {
        (name, kernel.name): kernel
        for name, report in reports.items()
        if isinstance(report, TargetReport)
        for kernel in report.kernels
        if "_tem_" not in kernel.name
    }
    assert any(name in BLOCKS for name, _ in generated) and len(generated) > 25
    found = {names: unaccounted(kernel, TARGETS[target]) for names, kernel in generated.items()}
    assert {names: instructions for names, instructions in found.items() if instructions} == {}


@pytest.mark.parametrize("target", EVERY_TARGET)
def test_fused_multiply_adds_are_those_of_the_table(target):
    kernels = compiled(target)["elementwise"].kernels
    found = {name: why(kernel, TARGETS[target]) for name, kernel in zip(ELEMENTWISE_FMA, kernels, strict=True)}
    assert found == {name: on[TARGETS[target].backend] for name, on in ELEMENTWISE_FMA.items()}
    # Control: the instructions of addcmul under the source of x * y + z.
    of = dict(zip(ELEMENTWISE_FMA, kernels, strict=True))
    assert unaccounted(dataclasses.replace(of["x * y + z"], assembly=of["addcmul"].assembly), TARGETS[target])


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


def test_what_runs_on_the_cpu_only_is_refused():
    error = compiled("sm_90")["one_sample"]
    assert isinstance(error, UnsupportedOpError)
    assert "aten.linalg_inv_ex" in str(error) and "torch's kernel runs on one sample at a time, and on the CPU only" in str(error)


def test_a_sum_over_a_view_of_a_view():
    report = compiled("sm_90")["views_of_views"]
    assert [kernel.alternatives for kernel in report.kernels if "_tem_" in kernel.name] == [0] and report.others == ()


@pytest.mark.parametrize("target", EVERY_TARGET)
def test_flex_attention_is_made_of_templates(target):
    report = compiled(target)["flex"]
    # create_block_mask sorts the numbers of blocks.
    assert report.faults == [] and set(report.others) == {"torch.ops.aten.sort.stable"}
    # The scores, what the queries attend to, and the logarithm of the sums.
    assert [kernel.alternatives for kernel in report.kernels if "_tem_" in kernel.name] == [0, 0, 0]


@pytest.mark.parametrize("name", [*OPERATORS, "one_sample"])
@torch.no_grad()
def test_explain_refuses_what_a_compile_refuses(name):
    program = load_program(f"{MODULE}:{name}")
    explanation = bi_inductor.explain(program.model, *program.arguments[0], target="sm_90")
    found = compiled("sm_90")[name]
    assert bool(explanation.refused) is isinstance(found, UnsupportedOpError)
    if not explanation.refused:
        (use,) = explanation.kernels(explanation.graphs[0])
        # A kernel's own line holds sizes of the call beside what is pinned.
        kernels = [kernel.configuration for kernel in found.kernels]
        assert not use.configuration or any(set(use.configuration.split(", ")) <= set(kernel.split(", ")) for kernel in kernels)


def test_one_binary_for_every_batch():
    kernels = [compiled("sm_90")[f"rows_{size}"].kernels[0] for size in SIZES]
    assert [kernel.bytes_moved for kernel in kernels] == [2 * size * 96 * 4 for size in SIZES]
    # A block of threads is larger for more elements, and no element follows its block. A number of rows divisible by 16 changes nothing.
    of = {size: (kernel.configuration, kernel.assembly) for size, kernel in zip(SIZES, kernels, strict=True)}
    assert of[16] == of[17]
    assert len(set(of.values())) == len({configuration for configuration, _ in of.values()})


def templates_of(kind, size):
    """The kernels of templates in the program ``kind``_``size``."""
    report = compiled("sm_90")[f"{kind}_{size}"]
    assert report.faults == [] and report.others == ()
    return [kernel for kernel in report.kernels if "_tem_" in kernel.name]


def test_templates_are_one_binary_for_every_batch_that_is_not_known():
    first, *others = ([kernel.assembly for kernel in templates_of("dynamic", size)] for size in SIZES[1:])
    assert len(first) == 5 and all(other == first for other in others)
    # Control: a batch that is known is written into the kernels.
    assert first != [kernel.assembly for kernel in templates_of("static", 2)]


def test_templates_have_one_configuration_for_every_batch_that_is_known():
    expected = [
        "BLOCK_M=64, BLOCK_N=64, BLOCK_K=64, GROUP_M=8, 4 warps, 4 stages",
        "BLOCK_M=64, CHUNK=64, BLOCK_D=64, BLOCK_V=64, 8 warps, 2 stages",
        "UNROLL=4, BLOCK=256, GROUPS=0, 1 warp, 1 stage",
        "UNROLL=4, BLOCK=256, 1 warp, 1 stage",
        "CHAINS=32, AHEAD=8, 1 warp, 1 stage",
    ]
    products = r"wgmma\.mma_async|mma\.sync"
    units = [set(kernel.instructions(products)) for kernel in templates_of("dynamic", 17)]
    # torch takes a batch of one for known always.
    for kind, size in [*(("static", size) for size in SIZES), ("dynamic", 1), ("dynamic", 17)]:
        kernels = templates_of(kind, size)
        assert [kernel.configuration for kernel in kernels] == expected, (kind, size)
        assert [set(kernel.instructions(products)) for kernel in kernels] == units, (kind, size)


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
