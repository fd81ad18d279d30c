"""The backend as a caller meets it: its errors, and what it leaves untouched in the process."""

import configparser
import os
import pickle
import re
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from torch._functorch import config as functorch_config
from torch._inductor import config
from torch._inductor.codegen.cpp import CppKernel, CppTile2DKernel, CppVecKernel
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.lowering import lowerings
from torch._inductor.utils import run_and_get_code

import bi_inductor
from bi_inductor import backend
from bi_inductor.passes.capture import CAPTURED
from bi_inductor.pins import PINS


def unsupported(x):
    return torch.pdist(x)


def model(x, weight):
    return torch.nn.functional.rms_norm(x @ weight, [8]).softmax(-1) * torch.sigmoid(x.sum(-1, keepdim=True))


def compiled(function, **arguments):
    return torch.compile(function, backend="batch_invariant", **arguments)


# ---- errors


def test_errors_reach_the_caller_as_they_are():
    with pytest.raises(bi_inductor.UnsupportedOpError, match=r"aten\._pdist_forward") as caught:
        compiled(unsupported)(torch.randn(2, 3))
    error = caught.value
    assert isinstance(error, bi_inductor.BatchInvariantError)
    assert not isinstance(error, torch._dynamo.exc.BackendCompilerFailed)
    # The traceback ends at the backend; what lies between the call and the backend inside torch is one frame.
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    assert len([name for name in frames if f"{os.sep}torch{os.sep}" in name]) <= 2
    assert not any("_inductor" in name and "bi_inductor" not in name for name in frames)
    assert type(pickle.loads(pickle.dumps(error))) is bi_inductor.UnsupportedOpError


def test_a_verbose_dynamo_keeps_every_frame():
    with torch._dynamo.config.patch(verbose=True), pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        compiled(unsupported)(torch.randn(2, 3))
    assert isinstance(caught.value.inner_exception, bi_inductor.UnsupportedOpError)
    assert any("post_grad.py" in frame.filename for frame in traceback.extract_tb(caught.value.__traceback__))


def test_errors_of_others_stay_theirs(monkeypatch):
    def fail(*args):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("bi_inductor.passes.post_grad.rewrite", fail)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="planted"), config.patch(fx_graph_cache=False):
        compiled(lambda x: x + 1)(torch.randn(2))


def test_option_errors_are_value_errors():
    with pytest.raises(ValueError, match="unknown option 'bogus'") as caught:
        compiled(lambda x: x + 1, options={"bogus": 1})(torch.randn(2))
    assert isinstance(caught.value, bi_inductor.OptionError)


PREVIEWS = ["2.14.0.dev20260101+cpu", "2.14.0a0+git1a2b3c", "2.14.0rc1"]


@pytest.mark.parametrize("version", ["2.12.1", "2.16.0", "2.99.0", "3.0.0+cpu", "1.13.1", "12.14.0", "2.140.0", *PREVIEWS])
def test_a_version_of_torch_that_was_not_tested_is_refused(version, monkeypatch):
    message = rf"torch 2\.13, 2\.14, 2\.15 \(.*2\.13\.0.*\); this is {re.escape(version)}\. Install"
    with pytest.raises(bi_inductor.UnsupportedVersionError, match=message):
        backend.check_torch_version(version)
    monkeypatch.setattr(torch, "__version__", version)
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(bi_inductor.UnsupportedVersionError):
        backend.batch_invariant(graph, [torch.randn(2)])


@pytest.mark.parametrize("version", [*backend.TESTED_TORCH, "2.13.0+cpu", "2.14.0+cu130", "2.15.7", torch.__version__])
def test_a_release_of_a_tested_version_of_torch_is_accepted(version):
    backend.check_torch_version(version)


def test_the_package_asks_for_the_versions_of_torch_that_the_backend_accepts():
    settings = configparser.ConfigParser()
    settings.read(Path(__file__).parents[2] / "setup.cfg")
    needs = map(Requirement, settings["options"]["install_requires"].split("\n")[1:])
    (torch_range,) = [need.specifier for need in needs if need.name == "torch"]
    minor_versions = {version.rpartition(".")[0] for version in backend.TESTED_TORCH}
    assert {f"2.{minor}" for minor in range(100) if torch_range.contains(f"2.{minor}.1")} == minor_versions


def test_a_missing_compiler_is_named_with_the_way_out(tmp_path):
    # The first to miss it is Inductor for a pointwise graph, and the library of kernels for the other.
    code = """
import bi_inductor, torch
for function in (lambda x: torch.sin(x) + 1, lambda x: x.softmax(-1)):
    try:
        torch.compile(function, backend="batch_invariant")(torch.randn(4, 4))
    except bi_inductor.CompilerError as error:
        print(error)
try:
    torch.ops.bi_inductor.softmax(torch.randn(2, 2), -1)
except bi_inductor.CompilerError as error:
    print(error)
"""
    environment = {**os.environ, "CXX": "/nonexistent/g++", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("found no C++ compiler. Install g++ (Debian and Ubuntu: apt-get install g++)") == 3
    assert run.stdout.count("environment variable CXX. Tried: (None, '/nonexistent/g++')") == 3


# ---- what stays untouched


def state_of_torch():
    """What a compile of ours changes while it runs."""
    return {
        "settings": {name: config.get_config_copy()[name] for name in PINS},
        "captured": {op: dict(op.py_kernels) for op in CAPTURED},
        "overrides": [kernel.__dict__["overrides"] for kernel in (CppKernel, CppVecKernel, CppTile2DKernel)],
        "decompositions": dict(select_decomp_table()),
        "lowerings": {op: lowering for op, lowering in lowerings.items() if not str(op).startswith("bi_inductor")},
    }


def stock_code(*inputs):
    torch._dynamo.reset()
    with config.patch(fx_graph_cache=False):
        out, codes = run_and_get_code(torch.compile(model), *inputs)
    # The first line numbers the graphs of the process.
    return out, [code.partition("\n")[2] for code in codes]


def test_other_compiles_are_left_alone():
    inputs = torch.randn(5, 8), torch.randn(8, 8)
    # The first compile in a process adds lowerings of torch's own.
    expected, code = stock_code(*inputs)
    before = state_of_torch()
    ours = compiled(model)(*inputs)
    assert state_of_torch() == before
    with pytest.raises(bi_inductor.UnsupportedOpError):
        compiled(unsupported)(torch.randn(2, 3))
    with pytest.raises(bi_inductor.OptionError):
        compiled(model, options={"freezing": True})(*inputs)
    assert state_of_torch() == before
    out, code_after = stock_code(*inputs)
    assert code_after == code
    assert torch.equal(out, expected)
    assert "bi_inductor" not in "".join(code)
    torch._dynamo.reset()
    assert torch.equal(compiled(model)(*inputs), ours)


def test_the_state_is_changed_while_a_compile_runs(monkeypatch):
    # The control of the test above: it looks at what does change.
    seen = []
    original = backend.check_pins_in_force
    monkeypatch.setattr(backend, "check_pins_in_force", lambda *given: (seen.append(state_of_torch()), original(*given)))
    before = state_of_torch()
    # A graph that AOTAutograd finds in its cache is not compiled.
    with functorch_config.patch(enable_autograd_cache=False):
        compiled(lambda x: x.sin())(torch.randn(3))
    assert {name for name in before if seen[0][name] != before[name]} >= {"settings", "captured", "overrides"}


def test_compiles_in_parallel_threads_give_their_own_results():
    x, weight = torch.randn(9, 8), torch.randn(8, 8)

    def variant(scale):
        # Each a graph of its own, so that no thread finds another's result in a cache.
        def function(x, weight):
            return (x * scale @ weight).softmax(-1)

        return function

    def run(function, stock):
        leaf = x.clone().requires_grad_()
        out = (torch.compile(function) if stock else compiled(function))(leaf, weight)
        out.square().sum().backward()
        return out.detach(), leaf.grad

    jobs = [(variant(1.0), True), (variant(2.0), False), (variant(3.0), False)]
    expected = [run(*job) for job in jobs]
    torch._dynamo.reset()
    found = [None] * len(jobs)

    def work(i):
        with config.patch(fx_graph_cache=False):
            found[i] = run(*jobs[i])

    before = state_of_torch()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert state_of_torch() == before
    for job, one, other in zip(jobs, found, expected, strict=True):
        assert one is not None, job
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
