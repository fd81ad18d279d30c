"""Kernels of a graph that are compiled together do what they do alone."""

import re

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from bi_inductor.templates.bundle import (
    HEADER,
    KERNELS_PER_SOURCE,
    OPAQUE_ELEMENTS,
    BundleCodeCache,
    CallCodeCache,
    GeneratedKernel,
    bundle_source,
    in_groups,
)

INT = "const int64_t"


def kernel(statement: str) -> str:
    """A source as Inductor writes it."""
    return f'{HEADER}\nextern "C"  void  kernel(const float* x, float* y, const int64_t n)\n{{\n    {statement}\n}}\n'


TYPES = ["const float*", "float*", INT]
DOUBLE = kernel("for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];")
FAIL = kernel('TORCH_CHECK(n < 0, "index out of bounds");')


@pytest.fixture(scope="module")
def module():
    kernels = [GeneratedKernel.parse(TYPES, source) for source in (DOUBLE, FAIL)]
    return BundleCodeCache.load_async(bundle_source(kernels), "cpu")()


def test_kernels_of_one_source_have_names_of_their_own(module):
    x, y = torch.arange(5.0), torch.zeros(5)
    module.kernel_0(x, y, 4)
    assert y.tolist() == [0, 2, 4, 6, 0]


def test_errors_reach_python(module):
    x = torch.zeros(2)
    with pytest.raises(RuntimeError, match="index out of bounds"):
        module.kernel_1(x, x, 2)
    with pytest.raises(RuntimeError, match="another number of arguments"):
        module.kernel_0(x, x)
    with pytest.raises(RuntimeError, match="expected an int"):
        module.kernel_0(x, x, "two")


@pytest.mark.parametrize(
    "source",
    [
        DOUBLE.replace(HEADER, "#include <cstdint>"),
        DOUBLE.replace('extern "C"', 'static int helper() { return 1; }\nextern "C"'),
        DOUBLE + DOUBLE.replace(HEADER, ""),
    ],
    ids=["without Inductor's header", "a helper beside it", "two kernels"],
)
def test_other_sources_stay_alone(source):
    assert GeneratedKernel.parse(TYPES, source) is None


def test_calls_of_the_library_are_compiled_without_inductors_header():
    call = GeneratedKernel.parse(TYPES, DOUBLE.replace(HEADER, OPAQUE_ELEMENTS))
    assert call is not None and not call.header
    source = bundle_source([call, call])
    assert HEADER not in source and source.count("struct BFloat16") == 1
    bundles, calls = len(BundleCodeCache.cache), len(CallCodeCache.cache)
    x, weight = torch.linspace(-3, 3, 24).view(4, 6), torch.linspace(-1, 2, 36).view(6, 6)
    compiled = torch.compile(lambda x: torch.softmax(x @ weight, -1).sum(-1) * 2 + 1, backend="batch_invariant")
    expected = torch.ops.bi_inductor.sum(torch.ops.bi_inductor.softmax(torch.ops.bi_inductor.matmul(x, weight), 1), [1]) * 2 + 1
    assert torch.equal(compiled(x), expected)
    assert (len(BundleCodeCache.cache) - bundles, len(CallCodeCache.cache) - calls) == (1, 1)


@pytest.mark.parametrize(("items", "most", "sizes"), [(0, 6, []), (6, 6, [6]), (7, 6, [3, 4]), (13, 6, [4, 4, 5])])
def test_groups_are_of_about_one_size(items, most, sizes):
    groups = in_groups(list(range(items)), most)
    assert [len(group) for group in groups] == sizes
    assert [item for group in groups for item in group] == list(range(items))


@pytest.mark.parametrize("compile_threads", [1, 2])
def test_a_graph_with_more_kernels_than_one_source_holds(compile_threads):
    x, weight = torch.linspace(-3, 3, 24).view(4, 6), torch.linspace(-1, 2, 36).view(6, 6)

    def epilogues(x, matmul):
        for i in range(KERNELS_PER_SOURCE + 1):
            x = torch.relu(matmul(x, weight)) + i / compile_threads
        return x

    sources = len(BundleCodeCache.cache)
    compiled = torch.compile(lambda x: epilogues(x, torch.mm), backend="batch_invariant", options={"compile_threads": compile_threads})
    result, code = run_and_get_code(compiled, x)
    assert len(re.findall(r"= async_compile.cpp_pybinding", code[0])) == KERNELS_PER_SOURCE + 1
    assert len(BundleCodeCache.cache) - sources == 2
    expected = epilogues(x, torch.ops.bi_inductor.matmul)
    assert torch.equal(result.view(torch.int32), expected.view(torch.int32))
