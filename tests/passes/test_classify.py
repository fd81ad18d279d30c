"""The closed world: one class for every op, and an error with all the facts for whatever has none."""

import inspect
import warnings

import pytest
import torch
from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import bi_inductor
from bi_inductor.passes import op_classes
from bi_inductor.passes.classify import class_of, classify_graph
from bi_inductor.passes.decompositions import decomposition_table
from bi_inductor.passes.op_classes import OpClass, classify
from bi_inductor.passes.op_tables.elementwise import SCALAR_LOOPS
from bi_inductor.passes.op_tables.exact import COUNTS
from bi_inductor.passes.rewriter import RULES
from bi_inductor.settings import thread_count
from bi_inductor.ulp import bits_differ

TABLE = {
    OpClass.ELEMENTWISE: op_classes.ELEMENTWISE,
    OpClass.MOVEMENT: op_classes.MOVEMENT,
    OpClass.EXACT: op_classes.EXACT,
    OpClass.RANDOM: op_classes.RANDOM,
    OpClass.REWRITTEN: op_classes.SUMS,
}


def shift_in_place(x):
    x.copy_(x + 1)


LIBRARY = torch.library.Library("bi_inductor_tests", "FRAGMENT")
LIBRARY.define("shift(Tensor x) -> Tensor")
LIBRARY.impl("shift", lambda x: x + 1, "CompositeExplicitAutograd")
torch.library.register_fake("bi_inductor_tests::shift", torch.empty_like, lib=LIBRARY)
LIBRARY.define("shift_(Tensor(a!) x) -> ()")
LIBRARY.impl("shift_", shift_in_place, "CompositeExplicitAutograd")


def packet(name):
    namespace, _, op = name.partition(".")
    return getattr(getattr(torch.ops, namespace), op, None)


def functional_overloads(name):
    """The overloads that can be in a functionalized graph: no out= variants, none of TorchScript for Python's scalars and lists."""
    op = packet(name)
    for overload in (getattr(op, each) for each in op.overloads()):
        arguments = overload._schema.arguments
        writes = any(argument.alias_info is not None and argument.alias_info.is_write for argument in arguments)
        takes_tensors = any("Tensor" in str(argument.type) for argument in arguments)
        if takes_tensors and not writes and overload._overloadname != "Tensor_list":
            yield overload


def compiled(function, **options):
    return torch.compile(function, backend="batch_invariant", options=options)


def refused(function, *inputs, **options):
    with pytest.raises(bi_inductor.UnsupportedOpError) as caught:
        compiled(function, **options)(*inputs)
    return str(caught.value)


def torch_rules():
    """The rules for ops of torch; those of other packages have a name in place of an op."""
    return [op for op in RULES if not isinstance(op, str)]


# ---- the table


@pytest.mark.parametrize("op_class", TABLE, ids=lambda op_class: op_class.name)
def test_every_name_is_an_op_of_torch(op_class):
    assert [name for name in sorted(TABLE[op_class]) if packet(name) is None] == []


def test_no_op_has_two_classes():
    names = [name for members in TABLE.values() for name in members]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_rules_agree_with_the_table():
    # A rule for an exact op repairs a detail (the sign of a zero); every other op with a rule has no other class.
    for op in torch_rules():
        name = op_classes.op_name(op)
        others = [op_class for op_class, members in TABLE.items() if name in members and op_class is not OpClass.REWRITTEN]
        assert others in ([], [OpClass.EXACT]) or name in op_classes.OVERWRITES, name
        expected = OpClass.ONE_SAMPLE if name in op_classes.ONE_SAMPLE else OpClass.REWRITTEN
        assert classify(op, [torch.empty(1)], True) is expected
    # Sums are exact on integers, and not a class that lets floating-point sums through.
    for name in op_classes.SUMS | op_classes.SCATTERS:
        for overload in functional_overloads(name):
            assert classify(overload, [torch.empty(1, dtype=torch.int32)], overload in RULES) is OpClass.EXACT
            expected = OpClass.REWRITTEN if overload in RULES else OpClass.UNSUPPORTED
            assert classify(overload, [torch.empty(1)], overload in RULES) is expected


def test_an_op_that_nobody_listed_is_unsupported():
    listed = set().union(*TABLE.values()) | {op_classes.op_name(op) for op in torch_rules()}
    for name in ("_embedding_bag", "geqrf", "segment_reduce", "upsample_bilinear2d", "_pdist_forward"):
        name = f"aten.{name}"
        assert name not in listed
        assert classify(next(functional_overloads(name)), [torch.empty(1)], False) is OpClass.UNSUPPORTED


def test_classes_of_calls_that_are_no_aten_ops():
    from torch._higher_order_ops.cond import cond_op
    from torch._higher_order_ops.flex_attention import flex_attention

    assert classify(getattr, [], False) is OpClass.MOVEMENT
    assert classify(cond_op, [], False) is OpClass.MOVEMENT
    assert classify(flex_attention, [], False) is OpClass.UNSUPPORTED
    assert classify(torch.ops.bi_inductor.softmax.default, [], False) is OpClass.REWRITTEN
    assert classify(torch.ops.bi_inductor_tests.shift.default, [], False) is OpClass.OPAQUE
    assert classify(torch.ops.quantized.linear.default, [], False) is OpClass.UNSUPPORTED


# ---- what the elementwise class promises: Inductor writes C++ for it


def example(argument, name, dtype):
    """A value for an argument of a schema."""
    kind = str(argument.type)
    if "Tensor" in kind:
        if argument.name in ("condition", "mask"):
            return torch.ones(2, 4, dtype=torch.bool)
        if "bitwise" in name:
            return torch.ones(2, 4, dtype=torch.int32)
        return torch.rand(()).to(dtype) if name == "aten.masked_fill" and argument.name == "value" else torch.rand(2, 4).to(dtype)
    if argument.has_default_value():
        return argument.default_value
    if "bitwise" in name:
        return 1
    values = {
        "float": 0.5,
        "number": 0.5,
        "int": 1,
        "bool": False,
        "Optional[number]": None,
        "Optional[float]": None,
        "Optional[bool]": True,
    }
    if argument.name == "dtype":
        return torch.float64
    if argument.name == "rounding_mode":
        return None
    return values[kind] if kind in values or not kind.startswith("Optional") else None


def extern_calls(overload, dtype):
    """Names of the kernels outside of generated code that Inductor calls for an op, and the ops of its graph."""
    arguments = [example(argument, op_classes.op_name(overload), dtype) for argument in overload._schema.arguments]
    positional = [value for value, argument in zip(arguments, overload._schema.arguments, strict=True) if not argument.kwarg_only]
    named = {argument.name: value for value, argument in zip(arguments, overload._schema.arguments, strict=True) if argument.kwarg_only}
    places = [i for i, value in enumerate(positional) if isinstance(value, torch.Tensor)]
    tensors = [positional[i] for i in places]

    def call(*given):
        filled = list(positional)
        for i, value in zip(places, given, strict=True):
            filled[i] = value
        return overload(*filled, **named)

    table = decomposition_table("test")
    graph_module = make_fx(call, decomposition_table=table, tracing_mode="fake")(*tensors)
    mode = FakeTensorMode()
    with mode:
        inputs = [mode.from_tensor(tensor) for tensor in tensors]
        graph = GraphLowering(graph_module, example_inputs=inputs)
    with V.set_graph_handler(graph), V.set_fake_mode(mode):
        graph.run(*inputs)
    calls = [op for op in graph.operations if isinstance(op, ir.ExternKernel) and not isinstance(op, ir.MultiOutput)]
    kernels = [call.python_kernel_name for call in calls]
    return kernels, [node for node in graph_module.graph.nodes if node.op == "call_function"]


def elementwise_overloads():
    overloads = [overload for name in sorted(op_classes.ELEMENTWISE) for overload in functional_overloads(name)]
    # where() of a condition alone is another name for nonzero().
    return [overload for overload in overloads if overload is not torch.ops.aten.where.default]


# From torch 2.15 on Inductor calls ATen's nextafter for the halves: one scalar loop (shown below). Before, the generated
# code took the step in float32 and rounded it away.
ONE_LOOP_IN_ATEN = {(torch.ops.aten.nextafter.default, torch.bfloat16)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_elementwise_ops_are_generated_code(dtype):
    fallen_back, undecided = {}, []
    for overload in elementwise_overloads():
        kernels, nodes = extern_calls(overload, dtype)
        if kernels and (overload, dtype) not in ONE_LOOP_IN_ATEN:
            fallen_back[str(overload)] = kernels
        # What it decomposes into is of the classes that its own class allows.
        undecided += [(str(overload), str(n.target)) for n in nodes if class_of(n) not in (OpClass.ELEMENTWISE, OpClass.MOVEMENT)]
    assert fallen_back == {}
    assert undecided == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_nextafter_of_halves_has_one_value_in_every_loop_of_aten(dtype):
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    y = x[torch.randperm(len(x))]
    whole = torch.nextafter(x, y)
    strided = torch.nextafter(x.repeat_interleave(2)[::2], y)
    tails = torch.cat([torch.nextafter(*pair) for pair in zip(x.split(7), y.split(7), strict=True)])
    assert not bits_differ(whole, strided).any()
    assert not bits_differ(whole, tails).any()
    steps = (x != y) & x.isfinite() & y.isfinite()
    assert steps.sum() > 2**14 and bool((whole[steps] != x[steps]).all())


def operands_of_scalar_loop(name, dtype, count=40001):
    """Numbers that the function is defined for, and others: Bessel functions of negative ones are NaN."""
    x, y = torch.randn(count, dtype=torch.float64) * 3, torch.rand(count, dtype=torch.float64) * 5
    if name == "aten.gcd":
        return (x * 100).int(), (y * 20).int()
    if "polynomial" in name:
        y = y.round()
    if name in ("aten.special_zeta", "aten.igammac", "aten.igamma"):
        x, y = x.abs() + 1, y + 1
    count = len(packet(name).default._schema.arguments)
    return (x.to(dtype), y.to(dtype))[:count]


def loops_that_differ(name, dtype):
    """How many elements have other bits with strides, in the tail of a vector, alone, or on one thread."""
    op, operands = packet(name).default, operands_of_scalar_loop(name, dtype)
    whole = op(*operands)
    found = bits_differ(whole, op(*(x.repeat_interleave(2)[::2] for x in operands))).sum()
    for size, end in ((7, 7000), (1, 300)):
        parts = [op(*pair) for pair in zip(*(x[:end].split(size) for x in operands), strict=True)]
        found += bits_differ(whole[:end], torch.cat(parts)).sum()
    with thread_count(1):
        return int(found + bits_differ(whole, op(*operands)).sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_scalar_loops_have_one_value_in_every_place(dtype):
    assert {name: loops_that_differ(name, dtype) for name in sorted(SCALAR_LOOPS)} == dict.fromkeys(SCALAR_LOOPS, 0)
    # One of the kernels with a vector body of another algorithm.
    assert loops_that_differ("aten.igamma", dtype) > 0


def test_a_scalar_loop_is_called_as_it_is():
    def function(x):
        return torch.special.chebyshev_polynomial_t(x * 0.5, 4) + torch.special.zeta(x.abs() + 1.5, x * x + 0.5)

    x = torch.randn(9)
    assert torch.allclose(compiled(function)(x), function(x))


def test_the_check_for_generated_code_finds_a_fallback():
    assert extern_calls(torch.ops.aten.sort.stable, torch.float32)[0] == ["torch.ops.aten.sort.stable"]
    assert extern_calls(torch.ops.aten.digamma.default, torch.float32)[0] == []


# ---- what the exact class promises: no order to depend on, ties decided by position in the sample


def order_free(x):
    tiles = x.unflatten(-1, (-1, 12))
    values, indices = x.max(-1)
    return {
        "amax": x.amax(-1),
        "amin": x.amin(-1),
        "max.dim": values,
        "max.dim, index": indices,
        "min.dim over an inner dim": tiles.min(-2)[0],
        "argmin over an inner dim": tiles.argmin(-2),
        "sort": x.sort(-1)[0],
        "sort, index": x.sort(-1)[1],
        "topk, index": x.topk(7, -1)[1],
        "median, index": x.median(-1)[1],
        "nanmedian, index": x.nanmedian(-1)[1],
        "cummax, index": torch.cummax(x, -1)[1],
        "searchsorted": torch.searchsorted(torch.tensor([0.0, 1.0, 1.0, 2.0]), x),
        "max_pool1d": torch.nn.functional.max_pool1d(x, 3),
        "max_pool2d, index": torch.nn.functional.max_pool2d(tiles.unsqueeze(1), 6, return_indices=True)[1],
    }


def bits(tensor):
    """As integers, every NaN as one."""
    if not tensor.is_floating_point():
        return tensor
    return torch.where(tensor.isnan(), torch.nan, tensor).view(torch.int32)


def samples_with_ties(count, length=300):
    """Rows with many equal elements: zeros of both signs, NaN, a few numbers."""
    pools = [[-0.0, 0.0], [-0.0, 0.0, -1.0], [0.0, -0.0, 1.0], [torch.nan, 1.0, 2.0], [1.0, 2.0, 3.0]]
    return torch.stack([torch.tensor(pools[i % 5])[torch.randint(len(pools[i % 5]), (length,))] for i in range(count)])


def extrema(x):
    return {"amax": x.amax(-1), "amin": x.amin(-1), "max.dim": x.max(-1)[0]}


def differences(backend, function):
    """Names of the results of which a sample's bits follow the batch, the sample's place or the memory layout."""
    x = samples_with_ties(33)
    function = torch.compile(function, backend=backend, dynamic=True)
    alone = [{name: bits(value)[0] for name, value in function(x[i : i + 1]).items()} for i in range(5)]
    different = set()
    for batch in (x, x[:2], x.t().contiguous().t(), x[:8].t().contiguous().t()):
        for name, values in function(batch).items():
            if any(not torch.equal(bits(values)[i], alone[i][name]) for i in range(min(5, len(batch)))):
                different.add(name)
    return different


def test_exact_ops_have_no_order():
    assert differences("batch_invariant", order_free) == set()


def test_stock_has_one_for_the_sign_of_zero():
    assert differences("inductor", extrema) == {"amax", "amin", "max.dim"}


def test_a_zero_maximum_is_positive_and_nan_wins():
    x = torch.tensor([[-0.0, -0.0], [-1.0, -0.0], [torch.nan, 1.0]])

    def function(x):
        return x.amax(-1), x.max(-1)[0], x.amin(-1), x.max()

    amax, largest, amin, whole = compiled(function)(x)
    assert amax.signbit().tolist()[:2] == largest.signbit().tolist()[:2] == [False, False]
    assert amin.tolist()[1] == -1.0 and amin.signbit().tolist()[0] is False
    assert amax.isnan().tolist() == largest.isnan().tolist() == amin.isnan().tolist() == [False, False, True]
    assert whole.isnan()


def test_sort_is_stable():
    x = torch.randint(3, (4, 2000)).float()

    def function(x):
        return torch.sort(x, -1)[1], torch.sort(x, dim=-1, stable=False)[1], torch.sort(x, dim=-1, stable=True)[1], x.argsort(-1)

    expected = torch.sort(x, dim=-1, stable=True)[1]
    assert all(torch.equal(order, expected) for order in compiled(function)(x))
    table = decomposition_table("test")
    graph = make_fx(lambda x: torch.sort(x, stable=False), decomposition_table=table)(x).graph
    (call,) = graph.find_nodes(op="call_function", target=torch.ops.aten.sort.stable)
    assert call.kwargs["stable"] is True


def test_random_ops_pass():
    function = compiled(lambda x: torch.nn.functional.dropout(x) + torch.rand_like(x) + torch.randn(3))
    assert function(torch.ones(2, 3)).shape == (2, 3)


# ---- unsupported ops


def line_of(function, text):
    """Where `text` is in the source of a function: the number of its line in this file."""
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


class Bags(torch.nn.Module):
    def __init__(self):
        super().__init__()
        # What has no template is the gradient's scale.
        self.bags = torch.nn.EmbeddingBag(5, 3, scale_grad_by_freq=True)

    def forward(self, x):
        return self.bags(x + 1)


def test_the_error_has_all_the_facts():
    message = refused(Bags(), torch.zeros(2, 4, dtype=torch.int64))
    line = line_of(Bags.forward, "self.bags(")
    assert "aten._embedding_bag(float32[5, 3], int64[8], int64[2])" in message
    # The user's line, and not the one of torch.nn that it leads to.
    assert f'"{__file__}", line {line}, in forward: return self.bags(x + 1)' in message
    assert "torch.compiler.disable" in message
    assert "options={'allow': ('aten._embedding_bag',)}" in message


def test_all_unsupported_ops_are_in_one_message():
    def function(x):
        y = torch.geqrf(x)[0]
        y = y + torch.pdist(x).sum()
        return y + torch.segment_reduce(x, "sum", lengths=torch.tensor([4]))

    message = refused(function, torch.randn(4, 4))
    for op, text in (("geqrf", "torch.geqrf"), ("_pdist_forward", "torch.pdist"), ("segment_reduce", "torch.segment_reduce")):
        assert f"aten.{op}(float32[4, 4]" in message
        assert f"line {line_of(function, text)}, in function" in message
    assert "'allow': ('aten._pdist_forward', 'aten.geqrf', 'aten.segment_reduce')" in message


def test_allow_lets_an_op_through():
    module, x = Bags(), torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]])
    with torch.no_grad():
        out = compiled(module, allow=("aten._embedding_bag", "aten._embedding_bag_forward_only"))(x)
        assert torch.allclose(out, module(x), atol=1e-6)


def test_allow_names_only_what_it_names():
    def function(x):
        return torch.pdist(torch.geqrf(x)[0])

    message = refused(function, torch.randn(4, 4), allow=("aten.geqrf",))
    assert "aten._pdist_forward" in message and "aten.geqrf" not in message


def test_a_dynamic_shape_is_named_by_its_symbol():
    with pytest.raises(bi_inductor.UnsupportedOpError, match=r"aten\._pdist_forward\(float32\[s\d+, s\d+\]\)"):
        torch.compile(lambda x: torch.pdist(x), backend="batch_invariant", dynamic=True)(torch.randn(3, 5))


class PdistInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.pdist(*ctx.saved_tensors).sum()


@pytest.mark.parametrize("dynamic", [False, True])
def test_unsupported_op_in_a_backward(dynamic):
    with pytest.raises(bi_inductor.UnsupportedOpError, match=r"aten\._pdist_forward"):
        torch.compile(PdistInBackward.apply, backend="batch_invariant", dynamic=dynamic)(
            torch.randn(2, 3, requires_grad=True)
        ).sum().backward()


def test_complex_numbers():
    x = torch.randn(3, dtype=torch.complex64)
    message = refused(lambda x: x.asin(), x)
    assert "complex64[3]" in message and "aten.asin" in message
    # A view of them is no arithmetic.
    assert torch.equal(compiled(torch.view_as_real)(x), torch.view_as_real(x))


def test_a_rule_that_declines_is_no_way_around():
    weight = torch.randn(5, 3, requires_grad=True)
    index = torch.tensor([0, 1, 1])

    def function(weight):
        return torch.nn.functional.embedding(index, weight, scale_grad_by_freq=True)

    with pytest.raises(bi_inductor.UnsupportedOpError, match=r"aten\.embedding_dense_backward\(float32\[3, 3\]"):
        compiled(function)(weight).sum().backward()


# ---- custom ops


def shifted_twice(x):
    y = torch.ops.bi_inductor_tests.shift(x)
    return torch.ops.bi_inductor_tests.shift(y)


def test_a_custom_op_warns_once_for_each_line():
    x = torch.zeros(2, 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        assert torch.equal(compiled(shifted_twice)(x), x + 2)
    messages = [str(warning.message) for warning in caught if issubclass(warning.category, bi_inductor.OpaqueOpWarning)]
    assert len(messages) == 2
    for message, text in zip(messages, ("y = torch", "return torch"), strict=True):
        assert "bi_inductor_tests.shift(float32[2, 3])" in message
        assert f'"{__file__}", line {line_of(shifted_twice, text)}, in shifted_twice' in message


def test_a_custom_op_is_an_error_under_strict():
    with pytest.raises(bi_inductor.OpaqueOpError, match=r"bi_inductor_tests\.shift(.|\n)*'allow': \('bi_inductor_tests.shift',\)"):
        compiled(shifted_twice, strict=True)(torch.zeros(2, 3))


def test_allow_vouches_for_a_custom_op():
    with warnings.catch_warnings():
        warnings.simplefilter("error", bi_inductor.OpaqueOpWarning)
        out = compiled(shifted_twice, strict=True, allow=("bi_inductor_tests.shift",))(torch.zeros(2, 3))
    assert torch.equal(out, torch.full((2, 3), 2.0))


def test_a_kernel_of_vllm_is_an_error_unless_it_is_named():
    """Its warnings would be read by nobody, and its worker names those that are ours."""

    @torch.library.custom_op("vllm::bi_inductor_tests_twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    with pytest.raises(bi_inductor.OpaqueOpError, match=r"vllm\.bi_inductor_tests_twice(.|\n)*VLLM_PLUGINS"):
        compiled(lambda x: twice(x) + 1)(torch.ones(2, 3))
    named = compiled(lambda x: twice(x) + 1, allow=("vllm.bi_inductor_tests_twice",))
    assert torch.equal(named(torch.ones(2, 3)), torch.full((2, 3), 3.0))


def test_a_custom_op_that_writes_into_its_argument_is_opaque_too():
    def function(x):
        y = x * 2
        torch.ops.bi_inductor_tests.shift_(y)
        return y

    with pytest.warns(bi_inductor.OpaqueOpWarning, match=r"bi_inductor_tests\.shift_\("):
        assert torch.equal(compiled(function)(torch.ones(2, 3)), torch.full((2, 3), 3.0))


def test_a_graph_without_source_lines():
    graph = make_fx(torch.pdist)(torch.randn(3, 2)).graph
    for node in graph.nodes:
        node.meta.pop("stack_trace", None)
    with pytest.raises(bi_inductor.UnsupportedOpError, match="an unknown source line"):
        classify_graph(graph, bi_inductor.Options())


@pytest.mark.parametrize(
    ("accumulate", "dtype", "expected"),
    [
        (False, torch.float32, OpClass.MOVEMENT),
        (True, torch.float32, OpClass.REWRITTEN),
        (True, torch.int64, OpClass.EXACT),
        (True, torch.complex64, OpClass.REWRITTEN),
    ],
)
def test_storing_at_indices_moves_data_and_adding_there_is_a_sum(accumulate, dtype, expected):
    def put(x, index, values):
        return torch.ops.aten.index_put(x, [index], values, accumulate)

    graph = make_fx(put, tracing_mode="fake")(torch.zeros(4, 3, dtype=dtype), torch.tensor([1, 2]), torch.ones(2, 3, dtype=dtype)).graph
    (found,) = [class_of(node) for node in graph.nodes if node.target is torch.ops.aten.index_put.default]
    assert found is expected


MOVES = {
    "flip": lambda x: x.flip(1),
    "rot90": lambda x: x.rot90(1, (1, 2)),
    "roll": lambda x: x.roll(2, 1),
    "diagonal": lambda x: x.diagonal(0, 1, 2),
    "tril": lambda x: x.tril(),
    "unbind": lambda x: x.unbind(1)[1],
    "chunk": lambda x: x.chunk(2, 1)[1],
    "stack": lambda x: torch.stack([x, x], 1),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 2)),
    "circular pad": lambda x: torch.nn.functional.pad(x, (1, 1), mode="circular"),
    "repeat": lambda x: x.repeat(1, 2, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "pixel_shuffle": lambda x: torch.nn.functional.pixel_shuffle(x.unsqueeze(2), 2),
    "select_scatter": lambda x: x.select_scatter(x[:, 0], 1, 2),
    "slice_scatter": lambda x: x.slice_scatter(x[:, :2], 1, 1, 3),
    "diagonal_scatter": lambda x: x.diagonal_scatter(x[:, 0], 0, 1, 2),
}


@pytest.mark.parametrize("name", MOVES)
def test_moving_data_passes_forward_and_backward(name):
    def move(x):
        out = MOVES[name](x)
        return out, torch.autograd.grad(out, x, torch.ones_like(out))[0]

    graph = make_fx(move, decomposition_table=decomposition_table("test"), tracing_mode="fake")(torch.randn(3, 4, 4).requires_grad_()).graph
    found = {str(node.target): class_of(node) for node in graph.nodes if node.op == "call_function"}
    assert {op: c for op, c in found.items() if c not in (OpClass.MOVEMENT, OpClass.ELEMENTWISE, OpClass.REWRITTEN)} == {}


def test_index_copy_keeps_rows():
    def write(cache, index, rows):
        return cache.index_copy(1, index, rows)

    cache, index, rows = torch.zeros(3, 6, 5), torch.tensor([4, 1]), torch.randn(3, 2, 5)
    result = compiled(write)(cache, index, rows)
    assert torch.equal(result, cache.index_copy(1, index, rows))
    assert torch.equal(compiled(write)(cache[:1], index, rows[:1]), result[:1])


COUNTED = {
    "bincount": lambda x, w: torch.bincount(x.long().abs().flatten(), w, minlength=4),
    "histogram": lambda x, w: torch.histogram(x.flatten(), 4, weight=w)[0],
    "histogramdd": lambda x, w: torch.histogramdd(x, [2, 2, 2], weight=w)[0],
}


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize(("weighted", "expected"), [(False, OpClass.EXACT), (True, OpClass.UNSUPPORTED)])
def test_counting_is_exact_and_adding_weights_is_not(name, weighted, expected):
    x, weights = torch.rand(6, 3), torch.rand(6 if name == "histogramdd" else 18)
    graph = make_fx(lambda x: COUNTED[name](x, weights if weighted else None))(x).graph
    counts = [node for node in graph.nodes if node.op == "call_function" and op_classes.op_name(node.target) in COUNTS]
    assert counts and class_of(counts[-1]) is expected
