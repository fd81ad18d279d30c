"""The rewritings of scatter, index_put and grouped matmuls: the graph before and after, and mixtures of experts compiled."""

from __future__ import annotations

import expecttest
import pytest
import torch
from torch import Tensor

import bi_inductor
from bi_inductor.settings import thread_count
from tests.passes.eager import ours, stock
from tests.passes.test_rewrite import f32, rewritten
from tests.templates.rows import assert_same_bits, randn, relative_error

INDEX = torch.tensor([[0, 2, 2, 1], [1, 0, 2, 2]])


def test_scatters() -> None:
    def fn(x: Tensor, src: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        return (
            x.scatter(1, index, src),
            x.scatter(1, index, 2.0),
            x.scatter(1, index, src, reduce="add"),
            x.scatter(1, index, 2.0, reduce="multiply"),
            x.scatter_add(1, index, src),
            x.scatter_reduce(1, index, src, "amax", include_self=False),
        )

    expecttest.assert_expected_inline(
        rewritten(fn, f32(2, 5), f32(2, 4), INDEX),
        """\
inference
  arg0_1: float32[2, 5]
  arg1_1: float32[2, 4]
  arg2_1: int64[2, 4]
- scatter = aten.scatter.src(arg0_1, 1, arg2_1, arg1_1) -> float32[2, 5]
- scatter_1 = aten.scatter.value(arg0_1, 1, arg2_1, 2.0) -> float32[2, 5]
- scatter_2 = aten.scatter.reduce(arg0_1, 1, arg2_1, arg1_1, reduce=add) -> float32[2, 5]
- scatter_3 = aten.scatter.value_reduce(arg0_1, 1, arg2_1, 2.0, reduce=multiply) -> float32[2, 5]
- scatter_add = aten.scatter_add.default(arg0_1, 1, arg2_1, arg1_1) -> float32[2, 5]
+ scatter_default = bi_inductor.scatter.default(arg0_1, 1, arg2_1, arg1_1, set, True) -> float32[2, 5]
+ full_default = aten.full.default([2, 4], 2.0, dtype=torch.float32, device=cpu) -> float32[2, 4]
+ scatter_default_1 = bi_inductor.scatter.default(arg0_1, 1, arg2_1, full_default, set, True) -> float32[2, 5]
+ scatter_default_2 = bi_inductor.scatter.default(arg0_1, 1, arg2_1, arg1_1, sum, True) -> float32[2, 5]
+ full_default_1 = aten.full.default([2, 4], 2.0, dtype=torch.float32, device=cpu) -> float32[2, 4]
+ scatter_default_3 = bi_inductor.scatter.default(arg0_1, 1, arg2_1, full_default_1, prod, True) -> float32[2, 5]
+ scatter_default_4 = bi_inductor.scatter.default(arg0_1, 1, arg2_1, arg1_1, sum, True) -> float32[2, 5]
- scatter_reduce = aten.scatter_reduce.two(arg0_1, 1, arg2_1, arg1_1, amax, include_self=False) -> float32[2, 5]
+ scatter_default_5 = bi_inductor.scatter.default(arg0_1, 1, arg2_1, arg1_1, amax, False) -> float32[2, 5]
- return (scatter, scatter_1, scatter_2, scatter_3, scatter_add, scatter_reduce)
+ return (scatter_default, scatter_default_1, scatter_default_2, scatter_default_3, scatter_default_4, scatter_default_5)""",
    )


def test_reducing_at_indices_and_where_a_mask_is_true() -> None:
    def fn(x: Tensor, index: Tensor, source: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        put = torch.ops.aten._unsafe_masked_index_put_accumulate
        return x.index_reduce(1, index, source, "mean", include_self=False), put(x, mask, [None, index], source)

    expecttest.assert_expected_inline(
        rewritten(fn, f32(2, 4), torch.tensor([3, 0, 3]), f32(2, 3), torch.tensor([True, False, True]), values=False),
        """\
inference
  arg0_1: float32[2, 4]
  arg1_1: int64[3]
  arg2_1: float32[2, 3]
  arg3_1: bool[3]
- index_reduce = aten.index_reduce.default(arg0_1, 1, arg1_1, arg2_1, mean, include_self=False) -> float32[2, 4]
- _unsafe_masked_index_put_accumulate = aten._unsafe_masked_index_put_accumulate.default(arg0_1, arg3_1, [None, arg1_1], arg2_1) -> float32[2, 4]
- return (index_reduce, _unsafe_masked_index_put_accumulate)
+ scatter_default = bi_inductor.scatter.default(arg0_1, 1, arg1_1, arg2_1, mean, False) -> float32[2, 4]
+ where_scalar_other = aten.where.ScalarOther(arg3_1, arg1_1, 0) -> int64[3]
+ where_scalar_other_1 = aten.where.ScalarOther(arg3_1, arg2_1, 0) -> float32[2, 3]
+ lt_scalar = aten.lt.Scalar(where_scalar_other, 0) -> bool[3]
+ add_tensor = aten.add.Tensor(where_scalar_other, 4) -> int64[3]
+ where_self = aten.where.self(lt_scalar, add_tensor, where_scalar_other) -> int64[3]
+ expand_default = aten.expand.default(where_scalar_other_1, [2, 3]) -> float32[2, 3]
+ reshape_default = aten.reshape.default(expand_default, [2, 3]) -> float32[2, 3]
+ reshape_default_1 = aten.reshape.default(arg0_1, [2, 4]) -> float32[2, 4]
+ reshape_default_2 = aten.reshape.default(where_self, [3]) -> int64[3]
+ scatter_default_1 = bi_inductor.scatter.default(reshape_default_1, 1, reshape_default_2, reshape_default, sum, True) -> float32[2, 4]
+ reshape_default_3 = aten.reshape.default(scatter_default_1, [2, 4]) -> float32[2, 4]
+ return (scatter_default, reshape_default_3)""",  # noqa: E501
    )


def test_an_index_shorter_than_the_tensor_leaves_the_rest() -> None:
    expecttest.assert_expected_inline(
        rewritten(lambda x, src, index: x.scatter_add(1, index, src), f32(3, 5), f32(3, 6), INDEX),
        """\
inference
  arg0_1: float32[3, 5]
  arg1_1: float32[3, 6]
  arg2_1: int64[2, 4]
- scatter_add = aten.scatter_add.default(arg0_1, 1, arg2_1, arg1_1) -> float32[3, 5]
- return (scatter_add,)
+ slice_tensor = aten.slice.Tensor(arg1_1, 0, 0, 2) -> float32[2, 6]
+ slice_tensor_1 = aten.slice.Tensor(slice_tensor, 1, 0, 4) -> float32[2, 4]
+ slice_tensor_2 = aten.slice.Tensor(arg0_1, 0, 0, 2) -> float32[2, 5]
+ scatter_default = bi_inductor.scatter.default(slice_tensor_2, 1, arg2_1, slice_tensor_1, sum, True) -> float32[2, 5]
+ slice_scatter_default = aten.slice_scatter.default(arg0_1, scatter_default, 0, 0, 2) -> float32[3, 5]
+ return (slice_scatter_default,)""",
    )


def test_integers_are_stored_by_the_kernel_and_added_as_they_are() -> None:
    def fn(x: Tensor, flags: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        return x.scatter(1, index, 7), flags.scatter(1, index, True), x.scatter_add(1, index, index)

    expecttest.assert_expected_inline(
        rewritten(fn, torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.bool), INDEX),
        """\
inference
  arg0_1: int64[2, 3]
  arg1_1: bool[2, 3]
  arg2_1: int64[2, 4]
- scatter = aten.scatter.value(arg0_1, 1, arg2_1, 7) -> int64[2, 3]
- scatter_1 = aten.scatter.value(arg1_1, 1, arg2_1, True) -> bool[2, 3]
+ full_default = aten.full.default([2, 4], 7, dtype=torch.int64, device=cpu) -> int64[2, 4]
+ view_dtype = aten.view.dtype(arg0_1, torch.float64) -> float64[2, 3]
+ view_dtype_1 = aten.view.dtype(full_default, torch.float64) -> float64[2, 4]
+ scatter_default = bi_inductor.scatter.default(view_dtype, 1, arg2_1, view_dtype_1, set, True) -> float64[2, 3]
+ view_dtype_2 = aten.view.dtype(scatter_default, torch.int64) -> int64[2, 3]
+ full_default_1 = aten.full.default([2, 4], True, dtype=torch.bool, device=cpu) -> bool[2, 4]
+ convert_element_type_default = prims.convert_element_type.default(arg1_1, torch.int32) -> int32[2, 3]
+ view_dtype_3 = aten.view.dtype(convert_element_type_default, torch.float32) -> float32[2, 3]
+ convert_element_type_default_1 = prims.convert_element_type.default(full_default_1, torch.int32) -> int32[2, 4]
+ view_dtype_4 = aten.view.dtype(convert_element_type_default_1, torch.float32) -> float32[2, 4]
+ scatter_default_1 = bi_inductor.scatter.default(view_dtype_3, 1, arg2_1, view_dtype_4, set, True) -> float32[2, 3]
+ view_dtype_5 = aten.view.dtype(scatter_default_1, torch.int32) -> int32[2, 3]
+ convert_element_type_default_2 = prims.convert_element_type.default(view_dtype_5, torch.bool) -> bool[2, 3]
  scatter_add = aten.scatter_add.default(arg0_1, 1, arg2_1, arg2_1) -> int64[2, 3]
- return (scatter, scatter_1, scatter_add)
+ return (view_dtype_2, convert_element_type_default_2, scatter_add)""",
    )


def test_adding_at_indices() -> None:
    expecttest.assert_expected_inline(
        rewritten(
            lambda x, rows, columns, values: x.index_put((rows, columns), values, accumulate=True),
            f32(3, 4, 2),
            torch.tensor([[0, 2], [2, -1]]),
            torch.tensor([1, -1]),
            f32(2, 2, 2),
        ),
        """\
inference
  arg0_1: float32[3, 4, 2]
  arg1_1: int64[2, 2]
  arg2_1: int64[2]
  arg3_1: float32[2, 2, 2]
- index_put = aten.index_put.default(arg0_1, [arg1_1, arg2_1], arg3_1, True) -> float32[3, 4, 2]
- return (index_put,)
+ lt_scalar = aten.lt.Scalar(arg1_1, 0) -> bool[2, 2]
+ add_tensor = aten.add.Tensor(arg1_1, 3) -> int64[2, 2]
+ where_self = aten.where.self(lt_scalar, add_tensor, arg1_1) -> int64[2, 2]
+ lt_scalar_1 = aten.lt.Scalar(arg2_1, 0) -> bool[2]
+ add_tensor_1 = aten.add.Tensor(arg2_1, 4) -> int64[2]
+ where_self_1 = aten.where.self(lt_scalar_1, add_tensor_1, arg2_1) -> int64[2]
+ mul_tensor = aten.mul.Tensor(where_self, 4) -> int64[2, 2]
+ add_tensor_2 = aten.add.Tensor(mul_tensor, where_self_1) -> int64[2, 2]
+ expand_default = aten.expand.default(arg3_1, [2, 2, 2]) -> float32[2, 2, 2]
+ reshape_default = aten.reshape.default(expand_default, [4, 2]) -> float32[4, 2]
+ reshape_default_1 = aten.reshape.default(arg0_1, [12, 2]) -> float32[12, 2]
+ reshape_default_2 = aten.reshape.default(add_tensor_2, [4]) -> int64[4]
+ scatter_default = bi_inductor.scatter.default(reshape_default_1, 0, reshape_default_2, reshape_default, sum, True) -> float32[12, 2]
+ reshape_default_3 = aten.reshape.default(scatter_default, [3, 4, 2]) -> float32[3, 4, 2]
+ return (reshape_default_3,)""",
    )


def test_index_add_in_any_dim() -> None:
    expecttest.assert_expected_inline(
        rewritten(lambda x, index, source: x.index_add(1, index, source), f32(3, 4), torch.tensor([3, 3, 0]), f32(3, 3), dynamic=True),
        """\
inference
  arg0_1: float32[n0, n1]
  arg1_1: int64[n0]
  arg2_1: float32[n0, n0]
- index_put = aten.index_put.default(arg0_1, [None, arg1_1], arg2_1, True) -> float32[n0, n1]
- return (index_put,)
+ sym_size_int = aten.sym_size.int(arg0_1, 1) -> SymInt
+ lt_scalar = aten.lt.Scalar(arg1_1, 0) -> bool[n0]
+ add_tensor = aten.add.Tensor(arg1_1, sym_size_int) -> int64[n0]
+ where_self = aten.where.self(lt_scalar, add_tensor, arg1_1) -> int64[n0]
+ sym_size_int_1 = aten.sym_size.int(arg0_1, 0) -> SymInt
+ sym_size_int_5 = aten.sym_size.int(where_self, 0) -> SymInt
+ expand_default = aten.expand.default(arg2_1, [sym_size_int_1, sym_size_int_5]) -> float32[n0, n0]
+ reshape_default = aten.reshape.default(expand_default, [sym_size_int_1, -1]) -> float32[n0, n0]
+ reshape_default_1 = aten.reshape.default(arg0_1, [sym_size_int_1, -1]) -> float32[n0, n1]
+ reshape_default_2 = aten.reshape.default(where_self, [-1]) -> int64[n0]
+ scatter_default = bi_inductor.scatter.default(reshape_default_1, 1, reshape_default_2, reshape_default, sum, True) -> float32[n0, n1]
+ sym_size_int_6 = aten.sym_size.int(arg0_1, 0) -> SymInt
+ sym_size_int_7 = aten.sym_size.int(arg0_1, 1) -> SymInt
+ reshape_default_3 = aten.reshape.default(scatter_default, [sym_size_int_6, sym_size_int_7]) -> float32[n0, n1]
+ return (reshape_default_3,)""",
    )


def test_the_backward_of_a_gather() -> None:
    expecttest.assert_expected_inline(
        rewritten(lambda x, index: x.gather(1, index), f32(2, 5).requires_grad_(), INDEX, training=True, shown=("backward",)),
        """\
backward
  primals_2: int64[2, 4]
  tangents_1: float32[2, 4]
  full = aten.full.default([2, 5], 0, dtype=torch.float32, layout=torch.strided, device=cpu, pin_memory=False) -> float32[2, 5]
- scatter_add = aten.scatter_add.default(full, 1, primals_2, tangents_1) -> float32[2, 5]
+ scatter_default = bi_inductor.scatter.default(full, 1, primals_2, tangents_1, sum, True) -> float32[2, 5]
- return (scatter_add, None)
+ return (scatter_default, None)""",
    )


def test_grouped_matmuls() -> None:
    def fn(x: Tensor, weight: Tensor, offs: Tensor) -> tuple[Tensor, ...]:
        return torch._grouped_mm(x, weight, offs=offs), torch._grouped_mm(weight, weight.mT)

    arguments = f32(5, 8).bfloat16(), f32(2, 8, 8).bfloat16(), torch.tensor([2, 5], dtype=torch.int32)
    expecttest.assert_expected_inline(
        rewritten(fn, *arguments, values=False),
        """\
inference
  arg0_1: bfloat16[5, 8]
  arg1_1: bfloat16[2, 8, 8]
  arg2_1: int32[2]
- _grouped_mm = aten._grouped_mm.default(arg0_1, arg1_1, arg2_1) -> bfloat16[5, 8]
+ grouped_matmul_default = bi_inductor.grouped_matmul.default(arg0_1, arg1_1, arg2_1) -> bfloat16[5, 8]
  permute = aten.permute.default(arg1_1, [0, 2, 1]) -> bfloat16[2, 8, 8]
- _grouped_mm_1 = aten._grouped_mm.default(arg1_1, permute) -> bfloat16[2, 8, 8]
- return (_grouped_mm, _grouped_mm_1)
+ matmul_default = bi_inductor.matmul.default(arg1_1, permute) -> bfloat16[2, 8, 8]
+ return (grouped_matmul_default, matmul_default)""",
    )


def test_experts_of_transformers() -> None:
    import transformers.integrations.moe  # noqa: F401  # defines the op

    expecttest.assert_expected_inline(
        rewritten(
            lambda x, weight, offs: torch.ops.transformers.grouped_mm_fallback(x, weight, offs),
            f32(5, 3).requires_grad_(),
            f32(2, 3, 4).requires_grad_(),
            torch.tensor([2, 5]),
            training=True,
        ),
        """\
forward
  primals_1: float32[5, 3]
  primals_2: float32[2, 3, 4]
  primals_3: int64[2]
- grouped_mm_fallback = transformers.grouped_mm_fallback.default(primals_1, primals_2, primals_3) -> float32[5, 4]
+ grouped_matmul_default = bi_inductor.grouped_matmul.default(primals_1, primals_2, primals_3) -> float32[5, 4]
- return (grouped_mm_fallback, primals_1, primals_2, primals_3)
+ return (grouped_matmul_default, primals_1, primals_2, primals_3)
backward
  primals_1: float32[5, 3]
  primals_2: float32[2, 3, 4]
  primals_3: int64[2]
  tangents_1: float32[5, 4]
- grouped_mm_fallback_backward = transformers.grouped_mm_fallback_backward.default(primals_1, primals_2, primals_3, tangents_1) -> 2 results
- getitem = getitem(grouped_mm_fallback_backward, 0) -> float32[5, 3]
- getitem_1 = getitem(grouped_mm_fallback_backward, 1) -> float32[2, 3, 4]
- return (getitem, getitem_1, None)
+ permute_default = aten.permute.default(primals_2, [0, 2, 1]) -> float32[2, 4, 3]
+ permute_default_1 = aten.permute.default(primals_1, [1, 0]) -> float32[3, 5]
+ grouped_matmul_default = bi_inductor.grouped_matmul.default(tangents_1, permute_default, primals_3) -> float32[5, 3]
+ grouped_matmul_default_1 = bi_inductor.grouped_matmul.default(permute_default_1, tangents_1, primals_3) -> float32[2, 3, 4]
+ return (grouped_matmul_default, grouped_matmul_default_1, None)""",
    )


def test_places_that_cannot_be_one_dim_are_refused() -> None:
    def apart(x: Tensor, index: Tensor) -> Tensor:
        return torch.ops.aten.index_put(x, [index, None, index], torch.ones(2, 3), accumulate=True)

    with pytest.raises(bi_inductor.UnsupportedOpError, match="index_put"):
        torch.compile(apart, backend="batch_invariant")(torch.zeros(3, 3, 3), torch.tensor([0, 1]))


def test_compiled_scatters_have_the_bits_of_the_operator_and_bounds() -> None:
    @torch.compile(backend="batch_invariant", dynamic=True)
    def fn(x: Tensor, index: Tensor, src: Tensor) -> tuple[Tensor, Tensor]:
        return x.scatter_add(1, index, src), torch.zeros(len(x), 4).index_put((index[:, 0],), src[:, :1], accumulate=True)

    x, src, index = randn(6, 9), randn(6, 50, seed=1), torch.randint(0, 6, (6, 50), generator=torch.Generator().manual_seed(0))
    scattered, placed = fn(x, index, src)
    assert_same_bits(scattered, torch.ops.bi_inductor.scatter(x, 1, index, src, "sum"))
    assert_same_bits(placed, torch.ops.bi_inductor.scatter(torch.zeros(6, 4), 0, index[:, 0], src[:, :1].expand(6, 4).contiguous(), "sum"))
    for rows in (1, 2, 5):
        assert_same_bits(fn(x[:rows], index[:rows] % 1, src[:rows])[0], fn(x, index % 1, src)[0][:rows])
    with pytest.raises(RuntimeError, match="out of bounds"):
        fn(x, index + 4, src)


def test_index_reduce_of_a_single_number() -> None:
    operands = torch.tensor(2.0), torch.tensor([0, 0]), torch.tensor([3.0, 5.0])
    (out,) = ours(lambda x, index, source: x.index_reduce(0, index, source, "prod"), *operands)
    assert out.shape == () and out.item() == 30.0


# Arguments of index_put: of the indices i and j, the dims of x that they index, and the shape of the values.
STORES = {
    "rows": (lambda i, j: [i], (7, 5, 4)),
    "an inner dim": (lambda i, j: [None, j], (6, 7, 4)),
    "neighbours": (lambda i, j: [i, j], (7, 4)),
    "apart": (lambda i, j: [i, None, j], (7, 5)),
    "two index dims": (lambda i, j: [i.unsqueeze(1), j[:4].unsqueeze(0)], (7, 4, 4)),
    "one number": (lambda i, j: [i], ()),
}


@pytest.mark.parametrize("name", STORES)
def test_the_last_of_several_elements_for_one_place_is_stored(name: str) -> None:
    places, shape = STORES[name]

    def store(x: Tensor, i: Tensor, j: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        put = torch.ops.aten.index_put
        return put(x, places(i, j), values), put(x.long(), places(i, j), values.long())

    i, j = torch.tensor([1, 4, 1, -2, 1, 0, -6]), torch.tensor([0, 3, 0, 1, 0, 2, 2])
    operands = torch.zeros(6, 5, 4), i, j, torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    # torch stores one after the other where there are so few.
    for given, expected in zip(ours(store, *operands), store(*operands), strict=True):
        assert torch.equal(given, expected)


def test_no_thread_wins_where_several_elements_go_to_one_place() -> None:
    index, values = torch.arange(200_000) % 7, torch.arange(200_000.0)

    def store(x: Tensor, index: Tensor, values: Tensor) -> Tensor:
        return x.index_put((index,), values)

    compiled = torch.compile(store, backend="batch_invariant", dynamic=True)
    expected = torch.tensor([float(values[index == i][-1]) for i in range(7)])
    for threads in (1, 2, 4):
        with thread_count(threads):
            assert torch.equal(compiled(torch.zeros(7), index, values), expected), threads


def test_storing_where_no_two_elements_can_meet_stays_as_it_is() -> None:
    def store(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        put = torch.ops.aten.index_put
        return put(x, [None, torch.arange(2)], x[:, :2] + 1), put(x, [at], x[:1])

    text = rewritten(store, f32(3, 4), torch.tensor([1]))
    assert text.count("aten.index_put") == 2 and "scatter" not in text


def test_the_gradient_of_a_table_that_a_score_mod_reads() -> None:
    import torch._dynamo._trace_wrapped_higher_order_op  # defines the op

    expecttest.assert_expected_inline(
        rewritten(lambda i, values: torch.ops.flex_lib.zeros_and_scatter([5], [i], values), torch.tensor([4, 0, 4, 1]), f32(4)),
        """\
inference
  arg0_1: int64[4]
  arg1_1: float32[4]
- zeros_and_scatter = flex_lib.zeros_and_scatter.default([5], [arg0_1], arg1_1) -> float32[5]
- return (zeros_and_scatter,)
+ full_default = aten.full.default([5], 0.0, dtype=torch.float32, device=cpu, pin_memory=False) -> float32[5]
+ lt_scalar = aten.lt.Scalar(arg0_1, 0) -> bool[4]
+ add_tensor = aten.add.Tensor(arg0_1, 5) -> int64[4]
+ where_self = aten.where.self(lt_scalar, add_tensor, arg0_1) -> int64[4]
+ expand_default = aten.expand.default(arg1_1, [4]) -> float32[4]
+ reshape_default = aten.reshape.default(expand_default, [4]) -> float32[4]
+ reshape_default_1 = aten.reshape.default(full_default, [5]) -> float32[5]
+ reshape_default_2 = aten.reshape.default(where_self, [4]) -> int64[4]
+ scatter_default = bi_inductor.scatter.default(reshape_default_1, 0, reshape_default_2, reshape_default, sum, True) -> float32[5]
+ reshape_default_3 = aten.reshape.default(scatter_default, [5]) -> float32[5]
+ return (reshape_default_3,)""",
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_index_select_has_its_gradient_in_every_batch(dtype: torch.dtype) -> None:
    """Inductor leaves index_add of bfloat16, which that gradient is, to a kernel of torch's."""
    index = torch.tensor([3, 0, 3, 3, 1, 0, 3])
    x = randn(8, 5, 4).to(dtype).requires_grad_()
    _, whole = ours(lambda x, index: x.index_select(1, index), x, index)
    for rows in (slice(0, 1), slice(6, 7), slice(2, 5)):
        assert_same_bits(ours(lambda x, index: x.index_select(1, index), x[rows].detach().requires_grad_(), index)[1], whole[rows])
    _, exact = stock(lambda x: x.index_select(1, index), x.detach().double().requires_grad_())
    assert relative_error(whole, exact) < {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}[dtype]
