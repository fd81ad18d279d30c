"""The Triton grouped matmul in the interpreter: each group has the bits of its own Triton matmul, whatever the other groups are."""

from __future__ import annotations

import pytest
import torch

from tests.interpreter import run_batches, run_compiled
from tests.interpreter.process import Interpreter
from tests.templates.rows import DTYPES, assert_same_bits, differences, randn
from tests.templates.test_grouped_matmul import groups

pytestmark = pytest.mark.xdist_group("interpreter")
ops = torch.ops.bi_inductor

# Groups of 0, 1, 17, 0, 3 and 40 rows, the last of more than a tile; rows 61 to 64 belong to none.
ENDS = (0, 1, 18, 18, 21, 61)
LENGTH = 65
Results = dict[str, torch.Tensor]


def grouped(rows: torch.Tensor, weight: torch.Tensor, columns: torch.Tensor, terms: torch.Tensor, ends: torch.Tensor) -> Results:
    """Groups of the rows of ``rows`` [LENGTH, 70], of the columns of ``columns`` [70, LENGTH], and of its terms."""
    return {
        "rows": ops.grouped_matmul(rows, weight, ends),
        "columns": ops.grouped_matmul(weight.mT, columns, ends),
        "terms": ops.grouped_matmul(columns, terms, ends),
    }


def one_by_one(rows: torch.Tensor, weight: torch.Tensor, columns: torch.Tensor, terms: torch.Tensor) -> Results:
    """The same by a matmul for each group."""
    parts = groups(ENDS)
    rest = LENGTH - ENDS[-1]
    return {
        "rows": torch.cat([*(ops.matmul(rows[part], weight[g]) for g, part in enumerate(parts)), rows.new_zeros(rest, 20)]),
        "columns": torch.cat([*(ops.matmul(weight.mT[g], columns[:, part]) for g, part in enumerate(parts)), rows.new_zeros(20, rest)], 1),
        "terms": torch.stack([ops.matmul(columns[:, part], terms[part]) for part in parts]),
    }


def product_of_groups(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = ops.grouped_matmul(a, b, ends)
    return out


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = ops.matmul(a, b)
    return out


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    shapes = (LENGTH, 70), (len(ENDS), 70, 20), (70, LENGTH), (LENGTH, 20)
    return tuple(randn(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_group_has_the_bits_of_its_matmul(interpreter: Interpreter, dtype: torch.dtype) -> None:
    tensors = operands(dtype)
    ends = torch.tensor(ENDS, dtype=torch.int32)
    found, expected = interpreter.run(run_compiled, grouped, *tensors, ends), interpreter.run(run_compiled, one_by_one, *tensors)
    for form in expected:
        assert_same_bits(found[form], expected[form], form)


def test_runs_start_with_the_group(interpreter: Interpreter) -> None:
    """float32 adds runs of 256 products: they count from the group's first term, as in its own matmul."""
    a, b = randn(3, 700), randn(700, 4, seed=1)
    found = interpreter.run(run_compiled, product_of_groups, a, b, torch.tensor([100, 700]))
    assert_same_bits(found[1], interpreter.run(run_compiled, product, a[:, 100:].contiguous(), b[100:].contiguous()))
    # Control: runs that count from the first term of all are another sum.
    padded = torch.cat([torch.zeros(3, 100), a[:, 100:]], 1)
    assert differences(found[1], interpreter.run(run_compiled, product, padded, b)) > 0


def experts(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return torch.relu(ops.grouped_matmul(x, weight, ends))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_group_keeps_its_bits_beside_any_other(interpreter: Interpreter, dtype: torch.dtype, dynamic: bool) -> None:
    x, weight = randn(60, 40, dtype=dtype), randn(3, 40, 24, dtype=dtype, seed=1)
    endless = torch.full_like(x, float("nan"))
    endless[5:22] = x[5:22]
    # The 17 rows of expert 1 with others before and after, alone, in other places of the batch, and with rows of no expert.
    calls = [
        (x, weight, torch.tensor([5, 22, 60])),
        (endless, weight, torch.tensor([5, 22, 60])),
        (x[5:22], weight, torch.tensor([0, 17, 17])),
        (torch.cat([x[:1], x[5:22]]), weight, torch.tensor([1, 18, 18])),
        (torch.cat([x[22:], x[5:22], x[:5]]), weight, torch.tensor([38, 55, 55])),
        (x[5:6], weight, torch.tensor([0, 1, 1])),
    ]
    found = interpreter.run(run_batches, experts, calls, dynamic)
    own = found[0][5:22]
    for result, rows in zip(found[1:5], (slice(5, 22), slice(0, 17), slice(1, 18), slice(38, 55)), strict=True):
        assert_same_bits(result[rows], own, str(rows))
    assert_same_bits(found[5], own[:1], "one row")
    assert_same_bits(found[4][55:], torch.zeros(5, 24, dtype=dtype), "rows of no expert")
    # Control: another expert's weight is seen.
    assert differences(found[0][:5], interpreter.run(run_compiled, experts, x[:5], weight, torch.tensor([0, 5, 5]))) > 0


def test_more_groups_than_are_looked_at_together(interpreter: Interpreter) -> None:
    x, weight = randn(80, 16), randn(70, 16, 4, seed=1)
    ends = torch.arange(1, 71)
    ends[40:] += 9
    found = interpreter.run(run_compiled, product_of_groups, x, weight, ends)
    expected = torch.cat([x[part] @ weight[g] for g, part in enumerate(groups(tuple(ends.tolist())))])
    torch.testing.assert_close(found[: len(expected)], expected)
    assert_same_bits(found[len(expected) :], torch.zeros(1, 4))


def test_ends_beyond_the_operands_are_their_bounds(interpreter: Interpreter) -> None:
    """Kernels raise no errors; what they read and write stays within the operands."""
    x, weight = randn(6, 8), randn(3, 8, 4, seed=1)
    found = interpreter.run(run_compiled, product_of_groups, x, weight, torch.tensor([-3, 5, 99]))
    assert_same_bits(found, interpreter.run(run_compiled, product_of_groups, x, weight, torch.tensor([0, 5, 6])))
