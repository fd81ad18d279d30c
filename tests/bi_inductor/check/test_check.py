"""`bi_inductor.check` finds what varies, passes what does not, and refuses what it cannot judge."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from typing import Any

import expecttest
import pytest
import torch
import torch._dynamo
from torch import Tensor, nn

from bi_inductor.check import check
from bi_inductor.check.result import CheckResult


def plus_batch_size(x: Tensor) -> Tensor:
    """A planted fault: batches of 3 and more are one ulp off in their first column."""
    result = x.clone()
    if x.shape[0] >= 3:
        result[:, 0] = torch.nextafter(x[:, 0], torch.tensor(math.inf))
    return result


def first_row_negated(x: Tensor) -> Tensor:
    """A planted fault that follows the place: whatever comes first in a batch of more than one changes its sign."""
    return torch.cat([-x[:1], x[1:]]) if x.shape[0] > 1 else x.clone()


def contaminated_by_nan(x: Tensor) -> Tensor:
    """A planted fault that only adversarial neighbours show: 0 * NaN is NaN."""
    return x + 0 * x.sum(0)


def runs(result: CheckResult) -> dict[str, int]:
    """Rows that differ by description of the run."""
    return {row.run: row.rows_different for row in result.rows}


# --- What varies is found; what does not passes ---------------------------------------------------------------------


def test_stock_eager_linear_varies() -> None:
    # FACTS: the BLAS behind eager chooses another kernel for one row than for many.
    torch.manual_seed(0)
    layer = nn.Linear(1024, 512)
    result = check(layer, torch.randn(8, 1024), backend="eager", neighbours=(math.nan, math.inf, 1e30))
    if result:
        pytest.skip("this CPU's BLAS has one order for all numbers of rows")
    assert result.deterministic
    assert runs(result)["batch of 8"] > 0
    assert "eager: not batch-invariant" in str(result)


def test_stock_inductor_linear_varies_and_names_no_other_reason() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(256, 64)
    result = check(layer, torch.randn(8, 256), backend="inductor", batch_sizes=(1, 8), dynamic=(False, True))
    if result:
        pytest.skip("this CPU's BLAS has one order for all numbers of rows")
    assert result.deterministic


def test_ours_is_the_default_and_passes_where_stock_varies() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(256, 64)
    result = check(layer, torch.randn(8, 256), batch_sizes=(1, 2, 8), dynamic=(None, True), neighbours=(math.nan, 1e30))
    assert result.backend == "batch_invariant"
    assert result, str(result)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_elementwise_function_passes(backend: str) -> None:
    def function(x: Tensor, table: Tensor) -> dict[str, Tensor]:
        return {"sum": x * 2 + table, "kept": x.abs()}

    inputs = (torch.randn(5, 32), torch.randn(32))
    result = check(
        function,
        inputs,
        backend=backend,
        batch_dim=(0, None),
        dynamic=(None, True),
        threads=(1, 2),
        neighbours=(math.nan, math.inf),
        grad=True,
    )
    assert result, str(result)
    assert {row.dynamic for row in result.rows} == ({None} if backend == "eager" else {None, True})
    assert {row.threads for row in result.rows} == {1, 2}
    assert all(row.rows > 0 for row in result.rows)


def test_planted_fault_by_batch_size_is_caught() -> None:
    result = check(plus_batch_size, torch.randn(8, 4), backend="eager")
    found = runs(result)
    assert (found["alone, again"], found["batch of 2"], found["batch of 3"], found["batch of 8"]) == (0, 0, 9, 8)
    row = next(row for row in result.rows if row.run == "batch of 8")
    assert (row.batch_size, row.rows, row.elements_different, row.max_ulp) == (8, 8, 8, 1)
    assert not result.invariant
    assert result.deterministic
    assert not result


def test_planted_fault_by_place_is_caught() -> None:
    result = check(first_row_negated, torch.ones(6, 3), backend="eager", batch_sizes=(1, 6), positions=("first", -1))
    found = runs(result)
    assert found == {
        "alone, again": 0,
        "batch of 6": 1,
        "permutation 0": 1,
        "permutation 1": 1,
        "sample first": 3,
        "sample at -1": 3,
        "same batch, again": 0,
    }


def test_adversarial_neighbours_only_when_asked() -> None:
    x = torch.randn(4, 8)
    assert check(contaminated_by_nan, x, backend="eager")
    result = check(contaminated_by_nan, x, backend="eager", neighbours=(math.nan, 1e30), positions=("middle",))
    found = {row.run: row for row in result.rows}
    assert found["sample middle, neighbours nan"].rows_different == found["sample middle, neighbours nan"].rows == 3
    assert found["sample middle, neighbours nan"].max_ulp == math.inf
    assert found["sample middle, neighbours 1e+30"].rows_different == 0


def test_planted_fault_in_the_backward_only() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * gradient.shape[0]

    x = torch.randn(4, 3)
    assert check(Scaled.apply, x, backend="eager")
    result = check(Scaled.apply, x, backend="eager", grad=True)
    assert runs(result)["batch of 4"] == 4


def test_planted_custom_backend() -> None:
    def variant(module: torch.fx.GraphModule, example_inputs: list[Tensor]) -> Callable[..., Any]:
        def call(*arguments: Tensor) -> tuple[Tensor, ...]:
            size = max(argument.shape[0] for argument in arguments if isinstance(argument, Tensor))
            return tuple(output + 2.0**-20 * size for output in module(*arguments))

        return call

    result = check(lambda x: torch.ones_like(x) + 0 * x, torch.randn(4, 4), backend=variant, dynamic=False)
    assert result.backend == "variant"
    assert runs(result)["batch of 4"] == 4


def test_many_shapes_do_not_hit_the_recompile_limit() -> None:
    result = check(torch.sin, torch.randn(14, 2), backend="aot_eager", batch_sizes=range(1, 15), dynamic=False)
    assert len([row for row in result.rows if row.run.startswith("batch of")]) == 13


# --- Functions of every kind ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.complex64,
        torch.int64,
        torch.uint8,
        torch.bool,
    ],
)
def test_every_dtype(dtype: torch.dtype) -> None:
    x = (torch.randn(4, 6) * 3).abs().to(dtype)
    assert check(torch.clone, x, backend="eager")

    def varies(x: Tensor) -> Tensor:
        return x.clone() if x.shape[0] == 1 else torch.where(x == 0, torch.ones_like(x), torch.zeros_like(x))

    result = check(varies, x, backend="eager", batch_sizes=(1, 2))
    assert runs(result)["batch of 2"] == 4


def test_nested_inputs_and_outputs_with_batch_dims_of_their_own() -> None:
    def function(ids: Tensor, cache: tuple[Tensor, Tensor], *, scale: float, table: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        return table[ids] * scale, {"keys": cache[0] + 1, "values": cache[1] + 1}, table.sum()

    inputs = {
        "ids": torch.randint(0, 10, (5, 3)),
        "cache": (torch.randn(2, 5, 4), torch.randn(2, 5, 4)),
        "scale": 2.0,
        "table": torch.randn(10, 4),
    }
    batch_dim: Mapping[str, int | None] = {"cache": -2, "table": None}
    result = check(function, inputs, backend="eager", batch_dim=batch_dim, out_batch_dim=(0, 1, None))
    assert result, str(result)
    assert result.samples == 5


def test_inputs_are_never_written_to() -> None:
    def function(x: Tensor, table: Tensor) -> Tensor:
        table.mul_(1)
        return x.add_(table)

    x, table = torch.randn(4, 3), torch.randn(3)
    x_before, table_before = x.clone(), table.clone()
    assert check(function, (x, table), backend="eager", batch_dim=(0, None))
    assert torch.equal(x, x_before)
    assert torch.equal(table, table_before)


def test_random_function_is_flagged() -> None:
    result = check(lambda x: x + torch.rand_like(x), torch.zeros(4, 3), backend="eager")
    assert not result
    assert not result.deterministic
    assert "not deterministic" in str(result).splitlines()[0]
    assert "two equal calls gave different bits" in str(result)


def test_state_is_left_as_found() -> None:
    threads, rng, limit = torch.get_num_threads(), torch.get_rng_state(), torch._dynamo.config.recompile_limit
    grad = torch.is_grad_enabled()

    def failing(x: Tensor) -> Tensor:
        torch.rand(3)
        if x.shape[0] == 3:
            raise KeyError("from the function")
        return x

    with pytest.raises(KeyError, match="from the function"):
        check(failing, torch.zeros(4, 3), backend="eager", threads=(threads + 1,))
    with pytest.raises(Exception, match="from the backend"):
        check(torch.sin, torch.zeros(4, 3), backend=_raise_from_backend, threads=(threads + 1,))
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), rng)
    assert torch._dynamo.config.recompile_limit == limit
    assert torch.is_grad_enabled() is grad


def _raise_from_backend(module: torch.fx.GraphModule, example_inputs: list[Tensor]) -> Callable[..., Any]:
    raise RuntimeError("from the backend")


def test_outputs_that_are_not_tensors_are_named() -> None:
    result = check(lambda x: (x + 1, x.shape[1]), torch.zeros(3, 2), backend="eager")
    assert result
    assert result.notes == ("output[1] (int) was not compared",)


# --- Bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "arguments", "message"),
    [
        (3.0, {}, "inputs must be a tensor, tuple, list or dict, got float"),
        ((1, 2.0), {}, r"inputs hold no tensor with a batch dim \(batch_dim=0\)"),
        (torch.zeros(3, 2), {"batch_dim": None}, r"no tensor with a batch dim \(batch_dim=None\)"),
        (torch.tensor(1.0), {}, r"batch_dim=0 is out of range for inputs of shape \(\); allowed is None"),
        (torch.zeros(3, 2), {"batch_dim": 2}, r"batch_dim=2 is out of range .* \(3, 2\); allowed is -2 to 1, or None"),
        (torch.zeros(1, 2), {}, r"inputs hold 1 sample\(s\); at least 2"),
        (
            {"x": torch.zeros(3, 2), "table": torch.zeros(2)},
            {},
            r"disagree on the number of samples \(inputs\['x'\]: 3, inputs\['table'\]: 2\)",
        ),
        ([torch.zeros(3), object()], {}, r"inputs\[1\] is a object; allowed are tensors, numbers"),
        ((torch.zeros(3), torch.zeros(3)), {"batch_dim": (0,)}, r"batch_dim=\(0,\) does not fit inputs, .* \[0, 1\]"),
        ({"x": torch.zeros(3)}, {"batch_dim": {"y": None}}, r"does not fit inputs, whose entries are \['x'\]"),
        (torch.zeros(3, 2), {"batch_sizes": (1, 4)}, r"batch_sizes: got 4; allowed are whole numbers from 1 to 3"),
        (torch.zeros(3, 2), {"batch_sizes": (0,)}, "batch_sizes: got 0"),
        (torch.zeros(3, 2), {"batch_sizes": ()}, "batch_sizes is empty"),
        (torch.zeros(3, 2), {"batch_sizes": (2.0,)}, "batch_sizes: got 2.0"),
        (torch.zeros(3, 2), {"threads": 0}, "threads: got 0; allowed are whole numbers from 1 on"),
        (torch.zeros(3, 2), {"permutations": [(0, 0, 1)]}, r"permutations: got \[0, 0, 1\]; allowed is each number"),
        (torch.zeros(3, 2), {"permutations": -1}, "permutations: got -1"),
        (torch.zeros(3, 2), {"positions": ("start",)}, "positions: got 'start'; allowed are a sequence of 'first'"),
        (torch.zeros(3, 2), {"positions": (3,)}, "positions: got 3; .* numbers from -3 to 2"),
        (torch.zeros(3, 2), {"dynamic": ()}, r"dynamic: got \(\); allowed are None, False, True"),
        (torch.zeros(3, 2), {"dynamic": "yes"}, "dynamic: got 'yes'"),
        (torch.zeros(3, 2), {"backend": "inducter"}, "backend: got 'inducter'; allowed are .*eager.*inductor"),
        (torch.zeros(3, 2), {"backend": 7}, "backend: got 7; allowed are a name and a callable"),
        (torch.zeros(3, 2), {"out_batch_dim": 2}, r"out_batch_dim=2 is out of range for output of shape"),
        (torch.zeros(3, 2), {"out_batch_dim": 1}, r"output has shape \(1, 2\), so its dim 1 is not the batch of 1"),
        (torch.zeros(3, 2), {"out_batch_dim": None}, "returned no tensor with a batch dim"),
        (torch.zeros(3, 2).long(), {"grad": True}, "grad=True needs a floating-point tensor with a batch dim"),
        (torch.zeros(3, 2).long(), {"neighbours": (1e30,)}, r"neighbours=\(1e\+30,\) needs a floating-point tensor"),
    ],
)
def test_bad_input(inputs: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(torch.clone, inputs, **{"backend": "eager", **arguments})


def test_functions_that_cannot_be_judged() -> None:
    x = torch.zeros(3, 2)
    with pytest.raises(TypeError, match="fn: got int; allowed are a module and a function"):
        check(3, x, backend="eager")
    with pytest.raises(ValueError, match=r"returns an object of type SimpleNamespace, .*return a tuple or a dict"):
        check(lambda x: types.SimpleNamespace(hidden=x), x, backend="eager")
    with pytest.raises(ValueError, match=r"out_batch_dim=0 is out of range for output of shape \(\)"):
        check(torch.sum, x, backend="eager")
    with pytest.raises(ValueError, match=r"output has shape \(6,\), so its dim 0 is not the batch of 3"):
        check(lambda x: x.flatten() if x.shape[0] == 3 else x, x, backend="eager")
    with pytest.raises(ValueError, match=r"torch.float32 \(1,\) in the reference and torch.float32 \(2,\) in a batch of 2"):
        check(lambda x: x[:, : x.shape[0]], x, backend="eager")
    with pytest.raises(ValueError, match="no output depends differentiably"):
        check(lambda x: x.detach() + 1, x, backend="eager", grad=True)


# --- The table ------------------------------------------------------------------------------------------------------


class TestTable(expecttest.TestCase):
    def test_text(self) -> None:
        x = torch.arange(24.0).reshape(4, 6) + 1
        result = check(plus_batch_size, x, backend="eager", threads=2, neighbours=(math.nan,), positions=("last",))
        self.assertExpectedInline(
            str(result),
            """\
eager: not batch-invariant, 33 of 45 rows differ (4 samples)
run                          batch  dynamic  threads  rows  different  elements  max ulp
alone, again                     1  default        2     4          0         0        0
batch of 2                       2  default        2     4          0         0        0
batch of 3                       3  default        2     6          6         6        1
batch of 4                       4  default        2     4          4         4        1
permutation 0                    4  default        2     4          4         4        1
permutation 1                    4  default        2     4          4         4        1
sample last                      4  default        2    12         12        12        1
sample last, neighbours nan      4  default        2     3          3         3        1
same batch, again                4  default        2     4          0         0        0""",
        )

    def test_text_of_a_function_that_is_not_deterministic(self) -> None:
        calls = []

        def counts(x: Tensor) -> tuple[Tensor, int]:
            calls.append(0)
            return x + len(calls), 0

        result = check(counts, torch.zeros(2, 1), backend="eager", threads=1, batch_sizes=(1, 2), permutations=0, positions=())
        self.assertExpectedInline(
            str(result),
            """\
eager: not deterministic, 6 of 6 rows differ (2 samples)
run                batch  dynamic  threads  rows  different  elements  max ulp
alone, again           1  default        1     2          2         2  1.3e+07
batch of 2             2  default        1     2          2         2  1.9e+07
same batch, again      2  default        1     2          2         2  2097152
output[1] (int) was not compared
two equal calls gave different bits: the function is random or not deterministic,
so the other rows say nothing about the batch""",
        )

    def test_rich_table_has_the_same_cells(self) -> None:
        from rich.console import Console

        result = check(plus_batch_size, torch.ones(4, 6), backend="eager")
        console = Console(width=120)
        with console.capture() as captured:
            console.print(result)
        assert "not batch-invariant" in captured.get()
        for row in result.rows:
            assert row.run in captured.get()


# --- Values against eager -------------------------------------------------------------------------------------------


def changed(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """A backend that computes what eager does, and changes its result."""
    return lambda gm, inputs: lambda *args: tuple(map(change, gm(*args)))


def tripled(x: Tensor) -> Tensor:
    return 3 * x


def test_the_distance_from_eager() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert check(tripled, x, eager=True, backend=changed(lambda y: y)).eager_distance == 0
    result = check(tripled, x, eager=True, backend=changed(lambda y: y + 3))
    assert result.invariant
    assert result.eager_distance == 0.25
    assert str(result).endswith("largest difference from eager, of the largest value of an output: 0.25")
    assert check(tripled, x).eager_distance is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_where_eager_has_none_are_infinitely_far(value: float) -> None:
    x = torch.tensor([[1.0, value], [3.0, 4.0]])
    assert check(tripled, x, eager=True, backend=changed(lambda y: y)).eager_distance == 0
    assert check(tripled, x, eager=True, backend=changed(lambda y: y.nan_to_num(0, 0))).eager_distance == math.inf


def test_other_whole_numbers_are_infinitely_far() -> None:
    x = torch.tensor([[1, 2], [3, 4]])
    assert check(tripled, x, eager=True, backend=changed(lambda y: y)).eager_distance == 0
    assert check(tripled, x, eager=True, backend=changed(lambda y: y + 1)).eager_distance == math.inf


@pytest.mark.parametrize("change", [Tensor.double, lambda y: y[..., :1], lambda y: y[..., None]], ids=["dtype", "size", "dims"])
def test_other_forms_are_infinitely_far(change: Callable[[Tensor], Tensor]) -> None:
    """Also where the values are equal and sizes would broadcast."""
    x = torch.ones(2, 2)
    assert check(tripled, x, eager=True, backend=changed(change)).eager_distance == math.inf


def test_gradients_count_too() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert check(torch.sin, x, eager=True, grad=True).eager_distance < 1e-6
