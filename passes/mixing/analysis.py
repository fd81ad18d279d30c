"""Follows the samples through a graph, node by node, and collects the nodes that mix them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

import bi_inductor.passes.mixing.indexing
import bi_inductor.passes.mixing.movement  # noqa: F401  # both register rules
from bi_inductor.passes.classify import called_op
from bi_inductor.passes.mixing.arithmetic import pointwise
from bi_inductor.passes.mixing.call import Call, Finding, Sizes
from bi_inductor.passes.mixing.inputs import GraphInput
from bi_inductor.passes.mixing.registry import RULES
from bi_inductor.passes.mixing.report import chain_of
from bi_inductor.passes.mixing.states import Affine, Factor, Order, Samples, State, States, Step, Whole, canonical, covers, plain, size_of
from bi_inductor.passes.op_classes import OpClass, classify, op_name
from bi_inductor.passes.op_tables.elementwise import ELEMENTWISE
from bi_inductor.passes.op_tables.random import RANDOM

# Their results depend on no operand's values.
FRESH = frozenset(
    f"aten.{name}"
    for name in [
        "full",
        "full_like",
        "zeros",
        "zeros_like",
        "ones",
        "ones_like",
        "empty",
        "empty_like",
        "empty_strided",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
        "new_empty_strided",
        "scalar_tensor",
        "eye",
        "tril_indices",
        "triu_indices",
        "rand_like",
        "randn_like",
        "randint_like",
        "sym_size",
        "sym_stride",
        "sym_numel",
        "sym_storage_offset",
        "_assert_async",
        "_assert_scalar",
        "_assert_tensor_metadata",
        "_linalg_check_errors",
        "rand",
        "randn",
        "randint",
        "randperm",
    ]
) | {"prims.inductor_seed", "prims.inductor_seeds", "prims.inductor_lookup_seed", "prims.inductor_random", "prims.inductor_randint"}
# An op on sizes, a check.
_NO_OPS = {"prims._make_token", "prims._sink_tokens"}


def find_mixing(graph: Graph, inputs: Sequence[GraphInput]) -> list[Finding]:
    """Every node of ``graph`` where a sample's value starts to depend on another sample, in the order of the graph.

    Args:
        graph: of AOTAutograd, a forward or an inference graph with fake values; not changed.
        inputs: of the graph of Dynamo that it was made from.

    A backward graph and the body of a higher-order op by itself have no findings: parameter gradients sum over the batch by their
    meaning, a body is followed where it is called. Nor has the graph of a single sample.
    """
    placeholders = graph.find_nodes(op="placeholder")
    roles = {}
    for node in placeholders:
        description = node.meta.get("desc")
        if type(description).__name__ == "TangentAOTInput":
            return []
        index = getattr(description, "idx", None)
        if index is not None and index < len(inputs):
            roles[node] = inputs[index]
    analysis = Analysis()
    return analysis.run(graph, roles)


class Analysis:
    """The states of one graph and what was found in it."""

    def __init__(self) -> None:
        self.sizes = Sizes()
        self.states: dict[Node, States] = {}
        self.findings: dict[Node, Finding] = {}

    def run(self, graph: Graph, roles: Mapping[Node, GraphInput]) -> list[Finding]:
        self._start(graph, roles)
        if not self.states:
            return []
        self._follow(graph)
        self._check_outputs(graph)
        found = {node: finding for node in graph.nodes if (finding := self.findings.get(node)) is not None}
        # Those in bodies of higher-order ops come last.
        return [*found.values(), *(finding for node, finding in self.findings.items() if node not in found)]

    def _start(self, graph: Graph, roles: Mapping[Node, GraphInput]) -> None:
        held = {
            node: role.dim
            for node, role in roles.items()
            if role.dim is not None and isinstance(node.meta.get("val"), torch.Tensor) and role.dim < node.meta["val"].dim()
        }
        batches = {self.sizes(node.meta["val"].shape[dim]) for node, dim in held.items()}
        if len(batches) != 1 or min(batches) < 2:
            return
        (batch,) = batches
        order = Order(batch)
        # Caches that a module keeps: tensors with a row for each sample, written in place.
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
            written = node.args[0]
            value = written.meta.get("val") if isinstance(written, Node) else None
            if isinstance(value, torch.Tensor) and written not in held and value.dim() > 2 and self.sizes(value.shape[0]) == batch:
                held[written] = 0
        for node, dim in held.items():
            shape = [self.sizes(size) for size in node.meta["val"].shape]
            if 0 in shape:
                continue
            dims = tuple(canonical([Factor(size, int(d == dim))]) for d, size in enumerate(shape))
            self.states[node] = Samples(dims, order, step=Step(node, dims, order, 0, None))
            self.names = {n: role.name for n, role in roles.items()}

    def _follow(self, graph: Graph) -> None:
        for node in graph.nodes:
            if node.op == "call_function":
                state = self._state_of(node)
                if state is not None:
                    self.states[node] = state

    def _state_of(self, node: Node) -> States:
        if node.target is operator.getitem:
            several = self.states.get(node.args[0])  # type: ignore[arg-type]  # a node
            return several[node.args[1]] if isinstance(several, list) and node.args[1] < len(several) else None  # type: ignore[index,operator]
        op = called_op(node)
        name = op_name(op)
        inputs = [self.states.get(source) for source in node.all_input_nodes]
        if name in FRESH or name in _NO_OPS:
            return None
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return self._higher_order(node, name)
        if not isinstance(op, torch._ops.OpOverload):
            return self._size_arithmetic(inputs)
        call = Call(node, op, node.args, dict(node.kwargs), self.states, self.sizes, self._report)
        found = RULES.get(name)
        flat = [state for entry in inputs for state in (entry if isinstance(entry, list) else [entry])]
        if not any(isinstance(state, (Samples, Whole)) for state in flat):
            if name in AFFINE_RULES or name in ("aten.arange", "prims.iota"):
                return self._settled(node, found(call) if found is not None else None)
            return None
        samples = [state for state in flat if isinstance(state, Samples)]
        wholes = [state for state in flat if isinstance(state, Whole)]
        if wholes and name not in TAKES_WHOLE:
            if not samples:
                value = node.meta.get("val")
                return [wholes[0]] * len(value) if isinstance(value, (tuple, list)) else wholes[0]
            for whole in wholes:
                call.escapes(whole, f"{node.name} combines it with samples")
        if found is None:
            if name in ELEMENTWISE or torch.Tag.pointwise in op.tags or name in RANDOM:
                found = pointwise
            elif node.meta.get("val") is None or not any(isinstance(v, torch.Tensor) for v in call.results):
                return self._scalar(call, samples)
            else:
                # Somebody's custom op has a warning of its own.
                if classify(op, [], False) is not OpClass.OPAQUE:
                    call.mixes("may combine samples: bi_inductor has no rule for it", samples[0], certain=False)
                found = _dims_in_place
        return self._settled(node, found(call))

    def _scalar(self, call: Call, samples: list[Samples]) -> States:
        """A number read from a tensor."""
        name = op_name(call.op)
        if not samples or call.node.meta.get("val") is None:
            return None
        return Whole(call.node, f"reads a number that {name} takes out of a sample", samples[0].step)

    def _size_arithmetic(self, inputs: Sequence[States]) -> States:
        for state in inputs:
            if isinstance(state, Whole):
                return state
        return None

    def _higher_order(self, node: Node, name: str) -> States:
        if name == "invoke_subgraph":
            body, operands = node.args[0], node.args[2:]
        else:
            tracked = [s for source in node.all_input_nodes if isinstance(s := self.states.get(source), (Samples, Whole))]
            if name in ("cond",):
                return self._cond(node)
            if tracked and any(isinstance(v, torch.Tensor) for v in _flat(node.meta.get("val"))):
                step = next((s.step for s in tracked), None)
                self._report(node, "may combine samples: bi_inductor has no rule for it", step, False)
            return None
        return self._body(node, body, operands)

    def _cond(self, node: Node) -> States:
        predicate, one, other, operands = node.args[:4]
        state = self.states.get(predicate)  # type: ignore[arg-type]  # a node or a bool
        if isinstance(state, Whole):
            self._report(state.node, f"{state.why}, and {node.name} chooses by it for all samples", state.step, True)
        elif isinstance(state, Samples):
            self._report(node, "chooses by one sample for all", state.step, True)
        first = self._body(node, one, operands)  # type: ignore[arg-type]  # a tuple
        self._body(node, other, operands)  # type: ignore[arg-type]  # a tuple
        return first

    def _body(self, node: Node, body: Any, operands: Sequence[Any]) -> States:
        """The states of the results of a body called with ``operands``."""
        owner = node.graph.owning_module
        module = getattr(owner, str(body.target), None) if owner is not None and isinstance(body, Node) else None
        if not isinstance(module, GraphModule):
            tracked = [s for operand in operands if isinstance(s := self.states.get(operand), Samples)]
            if tracked:
                self._report(node, "may combine samples: its body cannot be seen", tracked[0].step, False)
            return None
        for placeholder, operand in zip(module.graph.find_nodes(op="placeholder"), operands, strict=False):
            state = self.states.get(operand) if isinstance(operand, Node) else None
            if state is not None:
                self.states[placeholder] = state
        self._follow(module.graph)
        results: Any = module.graph.output_node().args[0]
        found = [self.states.get(result) if isinstance(result, Node) else None for result in results]
        return [None if isinstance(state, list) else state for state in found]

    def _settled(self, node: Node, states: States) -> States:
        """The sizes of dims without samples are those of the value."""
        values = node.meta.get("val")
        if isinstance(states, list):
            return [self._settled_one(node, value, state) for value, state in zip(_flat(values), states, strict=False)]
        return self._settled_one(node, values, states)

    def _settled_one(self, node: Node, value: Any, state: State) -> State:
        if not isinstance(value, torch.Tensor) or not isinstance(state, (Samples, Affine)):
            return state
        shape = [self.sizes(size) for size in value.shape]
        if 0 in shape:
            return None
        dims = list(state.dims)
        for d, size in enumerate(shape):
            if not any(f.stride for f in dims[d]):
                dims[d] = plain(size)
        if isinstance(state, Affine):
            return Affine(tuple(dims), state.offset)
        return Samples(tuple(dims), state.order, state.offset, state.target, state.step)

    def _check_outputs(self, graph: Graph) -> None:
        output = graph.output_node()
        results = output.args[0] if isinstance(output.args[0], (tuple, list)) else [output.args[0]]
        descriptions = output.meta.get("desc") or [None] * len(results)
        returned = [
            result
            for result, description in zip(results, descriptions, strict=False)
            if isinstance(result, Node) and "SavedForBackwards" not in type(description).__name__
        ]
        returned += [node.args[1] for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)]
        for node in returned:
            state = self.states.get(node)
            if isinstance(state, Whole):
                self._report(state.node, f"{state.why}, and the result is returned", state.step, True)
            elif isinstance(state, Samples):
                self._check_places(state)

    def _check_places(self, state: Samples) -> None:
        """A result has to have every sample, at its place."""
        step = state.step
        if state.order.node is not None:
            self._report(state.order.node, "puts samples into another order, and the result is returned", step, True)
            return
        if step is None or covers(state.dims, state.order, state.offset):
            return
        while step.before is not None and not covers(step.before.dims, step.before.order, step.before.offset):
            step = step.before
        self._report(step.node, "moves samples to other places or leaves some out, and the result is returned", step, True)

    def _report(self, node: Node, why: str, step: Step | None, certain: bool) -> None:
        if node not in self.findings:
            self.findings[node] = Finding(node, why, chain_of(step, self.names), certain)


def _dims_in_place(call: Call) -> States:
    """A guess for what follows an op without a rule: samples stay where they are in results of the same size there."""
    state = next(s for x in call.tensors() if (s := call.samples(x)) is not None)
    outputs: list[State] = []
    for i in range(len(call.results)):
        shape = call.out_shape(i)
        fits = all(d < len(shape) and shape[d] == size_of(state.dims[d]) for d in state.sample_dims)
        outputs.append(
            call.made(state, [state.dims[d] if d in state.sample_dims else plain(n) for d, n in enumerate(shape)]) if fits else None
        )
    return outputs if isinstance(call.node.meta.get("val"), (tuple, list)) else outputs[0]


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


AFFINE_RULES = frozenset(
    f"aten.{name}"
    for name in [
        "add",
        "sub",
        "mul",
        "rsub",
        "clone",
        "alias",
        "detach",
        "_to_copy",
        "lift_fresh_copy",
        "copy",
        "view",
        "reshape",
        "_unsafe_view",
        "permute",
        "transpose",
        "t",
        "unsqueeze",
        "squeeze",
        "expand",
        "select",
        "slice",
        "split",
        "unbind",
        "repeat",
        "flip",
    ]
) | {"prims.convert_element_type", "prims.broadcast_in_dim"}
# Where rows are may follow the whole batch.
TAKES_WHOLE = frozenset({"aten._grouped_mm", "bi_inductor.grouped_matmul", "transformers.grouped_mm_fallback"})
