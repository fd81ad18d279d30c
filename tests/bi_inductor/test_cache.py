"""Compiled graphs are found again by another process, and never after something they were made from has changed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import bi_inductor
from bi_inductor import passes, templates
from bi_inductor.templates.library import KERNELS, start_for_graph

# One worker: the tests share what their fixtures build.
pytestmark = pytest.mark.xdist_group("cache")

# Run in processes of their own: compiles one function, forward and backward, with one set of options after the other, and reports bits and
# cache statistics of each.
PROGRAM = """
import json, sys, torch
import bi_inductor
from torch._dynamo.utils import counters

artifacts, *settings = json.loads(sys.argv[1])
if artifacts and artifacts[0] == "load":
    torch.compiler.load_cache_artifacts(open(artifacts[1], "rb").read())

def function(x):
    return torch.relu(x).sum(-1), torch.softmax(x, -1)

results = []
for options in settings:
    torch._dynamo.reset()
    counters.clear()
    x = torch.linspace(-4, 4, 96).view(4, 24).requires_grad_()
    total, soft = torch.compile(function, backend="batch_invariant", options=options)(x)
    (total.sum() + (soft * soft.detach()).sum()).backward()
    results.append({
        "fx": [counters["inductor"]["fxgraph_cache_" + outcome] for outcome in ("hit", "miss", "bypass")],
        "aot": [counters["aot_autograd"]["autograd_cache_" + outcome] for outcome in ("hit", "miss", "bypass")],
        "total": total.tolist(),
        "soft": soft.sum(-1).tolist(),
        "bits": [t.detach().view(torch.int32).flatten().tolist() for t in (total, soft, x.grad)],
    })
if artifacts and artifacts[0] == "save":
    open(artifacts[1], "wb").write(torch.compiler.save_cache_artifacts()[0])
print(json.dumps([bi_inductor.__file__, *results]))
"""

# Compiles a function that is warned of twice, and reports the warnings, bits and cache statistics of each compile.
WARNING_PROGRAM = """
import json, sys, warnings, torch
import bi_inductor
from torch._dynamo.utils import counters

def function(x):
    y = torch.linalg.qr(x).R - x.mean(0)
    return y.softmax(-1).sum() * torch.rand_like(y) * 0 + y

results = []
for _ in range(2):
    torch._dynamo.reset()
    counters.clear()
    x = (torch.linspace(-4, 4, 48).view(3, 4, 4).sin() + 3 * torch.eye(4)).requires_grad_(sys.argv[1] == "grad")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = torch.compile(function, backend="batch_invariant")(x)
        if y.requires_grad:
            y.square().sum().backward()
    results.append({
        "fx": [counters["inductor"]["fxgraph_cache_" + outcome] for outcome in ("hit", "miss", "bypass")],
        "aot": [counters["aot_autograd"]["autograd_cache_" + outcome] for outcome in ("hit", "miss", "bypass")],
        "warnings": [str(warning.message) for warning in caught if warning.category.__module__ == "bi_inductor.errors"],
        "bits": y.detach().view(torch.int32).tolist(),
    })
print(json.dumps(results))
"""


class Package:
    """A copy of the package that processes run from, and a cache folder of its own."""

    def __init__(self, folder):
        self.root = folder / "site" / "bi_inductor"
        self.cache = folder / "cache"
        leave_out = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(bi_inductor.__file__).parent, self.root, ignore=leave_out)
        for part, module in (("passes", passes), ("templates", templates)):
            shutil.copytree(Path(module.__file__).parent, self.root / part, ignore=leave_out)

    def run(self, *settings, artifacts=None, cache=None):
        """The results of one process, one for each of the sets of options."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.root.parent),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(cache or self.cache),
        }
        command = [sys.executable, "-c", PROGRAM, json.dumps([artifacts, *settings])]
        process = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=self.root.parent)
        assert process.returncode == 0, process.stderr
        package, *results = json.loads(process.stdout.splitlines()[-1])
        assert package == str(self.root / "__init__.py")
        return results

    def edit(self, path, before, after):
        """Replaces the one occurrence of `before` in a source file."""
        file = self.root / path
        text = file.read_text()
        assert text.count(before) == 1, f"{before!r} is {text.count(before)} times in {path}"
        file.write_text(text.replace(before, after))
        return lambda: file.write_text(text)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return Package(tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    return tmp_path_factory.mktemp("artifacts") / "artifacts.bin"


@pytest.fixture(scope="module")
def first(package, artifacts):
    """The first run, with an empty cache."""
    (result,) = package.run({}, artifacts=["save", str(artifacts)])
    return result


def is_hit(result):
    return result["aot"][0] == 1 and result["aot"][1:] == [0, 0] and result["fx"][1:] == [0, 0]


def is_miss(result):
    return result["aot"] == [0, 1, 0] and result["fx"] == [0, 2, 0]


def test_first_process_misses_and_is_not_bypassed(first):
    # Forward and backward; "bypass" would say that the decomposition table or the pass cannot be cached.
    assert is_miss(first), first


def test_second_process_hits_with_the_same_bits_and_misses_with_another_option(package, first):
    second, other, again = package.run({}, {"allow": ["aten.logcumsumexp"]}, {"allow": ["aten.logcumsumexp"]})
    assert is_hit(second), second
    assert is_miss(other), other
    assert is_hit(again), again
    assert first["bits"] == second["bits"] == other["bits"] == again["bits"]


@pytest.mark.parametrize("mode", ["inference", "grad"])
def test_warnings_are_given_again_when_the_graph_comes_from_a_cache(mode, tmp_path):
    """In the process that compiled it and in another one, of forward and backward graphs."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    results = []
    for _ in range(2):
        process = subprocess.run([sys.executable, "-c", WARNING_PROGRAM, mode], env=environment, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr
        results += json.loads(process.stdout.splitlines()[-1])
    first, *others = results
    graphs = 1 if mode == "inference" else 2
    assert first["fx"] == [0, graphs, 0]
    for text in ("aten.linalg_qr(", "aten.mean(float32[3, 4, 4])", "aten.sum(", "prims.inductor_random("):
        assert any(text in warning for warning in first["warnings"]), (text, first["warnings"])
    for again in others:
        assert again["fx"] == [graphs, 0, 0]
        assert again["aot"] == [0, 1, 0], "an entry there would be found before anything could warn"
        assert again["warnings"] == first["warnings"]
        assert again["bits"] == first["bits"]


def test_deleted_libraries_of_kernels_are_built_again(package, first):
    libraries = [path for path in package.cache.rglob("*.so") if b"bi_softmax_float32_" in path.read_bytes()]
    assert libraries
    for library in libraries:
        library.unlink()
    (again,) = package.run({})
    assert is_hit(again), again
    assert again["bits"] == first["bits"]


def test_artifacts_work_in_another_cache(package, first, artifacts, tmp_path):
    (loaded,) = package.run({}, cache=tmp_path, artifacts=["load", str(artifacts)])
    assert is_hit(loaded), loaded
    assert loaded["bits"] == first["bits"]


@pytest.mark.parametrize("kind", ["pass", "template", "table"])
def test_an_edited_source_misses(kind, package, first):
    if kind == "pass":
        rule = "rule(aten.sum.dim_IntList)(_reduction(ops.{}.default))"
        undo = package.edit("passes/rewrite.py", rule.format("sum"), rule.format("mean"))
    elif kind == "template":
        undo = package.edit("templates/softmax/kernel.h", "Vec<A>::fill(sum[r]);", "Vec<A>::fill(sum[r] + sum[r]);")
    else:
        table = "    return table\n"
        undo = package.edit("passes/decompositions.py", table, "    table[aten.relu.default] = lambda x: x * 0.0 + 1.0\n" + table)
    try:
        (result,) = package.run({})
    finally:
        undo()
    assert is_miss(result), result
    if kind == "pass":
        assert result["total"] == pytest.approx([value / 24 for value in first["total"]])
    elif kind == "template":
        assert result["soft"] == pytest.approx([0.5] * 4)
    else:
        assert result["total"] == [24.0] * 4


def test_a_graph_of_another_version_is_refused():
    templates.register_kernels()
    symbol = KERNELS["softmax"].symbol(torch.float32)
    start_for_graph("softmax", "float32", symbol).result()
    for function, other in (("softmax", "bi_softmax_float32_000000000000"), ("gone", "bi_gone_float32_000000000000")):
        message = f"needs {other}, but this version of bi_inductor has (.|\n)*Compile the model again"
        with pytest.raises(bi_inductor.CompilerError, match=message):
            start_for_graph(function, "float32", other)
