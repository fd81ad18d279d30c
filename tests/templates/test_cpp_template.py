"""How calls of library kernels stand in generated code."""

import re

import torch
from torch._inductor.utils import run_and_get_code


def test_calls_of_one_kernel_share_one_source_whatever_their_sizes():
    def function(x, a, b):
        return x @ a, x[1:, 2:].transpose(0, 1) @ b

    tensors = [torch.linspace(-1, 1, 5 * 6).view(5, 6), torch.linspace(0, 2, 6 * 7).view(6, 7), torch.linspace(-2, 1, 4 * 3).view(4, 3)]
    # The first size is a symbol, the others are numbers; a transposed view starts behind its storage's first element.
    torch._dynamo.mark_dynamic(tensors[0], 0)
    torch._dynamo.mark_dynamic(tensors[2], 0)
    results, (code,) = run_and_get_code(torch.compile(function, backend="batch_invariant"), *tensors)
    definitions = re.findall(r"^(cpp_\w+) = async_compile", code, re.MULTILINE)
    calls = re.findall(r"^\s+(cpp_\w+)\(", code, re.MULTILINE)
    assert len(calls) == 2 and len(definitions) == 2  # with an offset and without one
    for result, expected in zip(results, function(*tensors), strict=True):
        torch.testing.assert_close(result, expected)

    results, (code,) = run_and_get_code(torch.compile(lambda x, a, b: (x @ a, b @ a[:3]), backend="batch_invariant"), *tensors)
    assert len(re.findall(r"^(cpp_\w+) = async_compile", code, re.MULTILINE)) == 1
    assert len(re.findall(r"^\s+cpp_\w+\(", code, re.MULTILINE)) == 2
    torch.testing.assert_close(results[1], tensors[2] @ tensors[1][:3])
