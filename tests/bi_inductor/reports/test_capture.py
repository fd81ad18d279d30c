"""Every graph of a call is captured, forward and backward, with the reasons of its graph breaks; nothing is left changed."""

import pytest
import torch
import torch._dynamo
from torch import nn

from bi_inductor import OptionError
from bi_inductor.reports.capture import capture


def names(captured):
    return [graph.name for graph in captured.graphs]


def broken(x):
    x = torch.relu(x)
    torch._dynamo.graph_break()
    return x.softmax(-1)


def test_stages_of_forward_and_backward():
    captured = capture(lambda x: torch.relu(x).sum(-1), [torch.randn(2, 4, requires_grad=True)])
    assert names(captured) == ["graph 0 forward", "graph 0 backward"]
    forward, backward = captured.graphs
    steps = ["captured", "round_low_precision", "rewrite", "inductor"]
    assert [record.stage for record in forward.stages] == ["dynamo", *steps]
    assert [record.stage for record in backward.stages] == steps
    (rewritten,) = forward.rewrites
    assert (rewritten.op, rewritten.into) == ("aten.sum.dim_IntList", ("bi_inductor.sum.default",))
    assert __file__ in rewritten.source
    with torch.no_grad():
        assert names(capture(torch.relu, [torch.randn(2)])) == ["graph 0 inference"]


def test_graph_breaks_name_their_reason_and_line():
    captured = capture(broken, [torch.randn(2, 4)])
    assert names(captured) == ["graph 0 inference", "graph 1 inference"]
    (graph_break,) = captured.breaks
    assert "graph_break()" in graph_break.reason and "Hint:" not in graph_break.reason
    assert __file__ in graph_break.source and "torch._dynamo.graph_break()" in graph_break.source


def test_a_break_before_the_first_op_is_reported_too():
    def function(x):
        torch._dynamo.graph_break()
        return x + 1

    assert capture(function, [torch.randn(2)]).breaks


def test_a_branch_on_a_value_is_a_graph_break():
    def function(x):
        return x + 1 if x.sum() > 0 else x - 1

    (graph_break,) = capture(function, [torch.ones(3)]).breaks
    assert graph_break.reason == "a branch on the value of a tensor" and "if x.sum() > 0" in graph_break.source


def test_data_dependent_shapes_are_a_graph_break():
    captured = capture(lambda x: x[x > 0].sum(), [torch.randn(8)])
    assert captured.breaks[0].reason.startswith("Dynamic shape operator: ")
    assert "output shape depends on input Tensor data" in captured.breaks[0].reason


def test_refused_ops_are_recorded_and_do_not_raise():
    captured = capture(lambda x: torch.igamma(x, x).sum(-1), [torch.randn(2, 4)])
    (graph,) = captured.graphs
    assert [node.op for node in graph.refused] == ["aten.igamma.default"]
    assert [rewritten.op for rewritten in graph.rewrites] == ["aten.sum.dim_IntList"]
    assert not capture(lambda x: torch.igamma(x, x), [torch.randn(2, 4)], options={"allow": ["aten.igamma"]}).graphs[0].refused


def test_stock_has_its_own_graphs_without_classes():
    (graph,) = capture(lambda x: x.softmax(-1), [torch.randn(2, 4)], backend="inductor").graphs
    assert [record.stage for record in graph.stages] == ["dynamo", "captured", "inductor"]
    assert "aten.sum.dim_IntList" in [node.op for node in graph.stages[-1].nodes]
    assert {node.op_class for node in graph.stages[-1].nodes} == {""}


def test_bodies_of_higher_order_ops_are_graphs_of_their_own():
    def function(x):
        return torch.cond(x.shape[0] > 0 and x.sum() > 0, lambda x: x.softmax(-1), lambda x: x.cumsum(-1), [x])

    captured = capture(function, [torch.randn(2, 4)])
    assert names(captured) == ["graph 0 inference, inner 0", "graph 0 inference, inner 1", "graph 0 inference"]
    assert [rewritten.op for graph in captured.graphs for rewritten in graph.rewrites] == [
        "aten._softmax.default",
        "aten.cumsum.default",
        "aten.sum.default",
    ]


def test_dynamic_shapes_are_symbols():
    (graph,) = capture(lambda x: x.sum(-1), [torch.randn(5, 4)], dynamic=True).graphs
    assert any("[s" in node.value for node in graph.stages[-1].nodes)


def test_inputs_buffers_and_random_state_are_left_as_found():
    def write(x):
        x.add_(1)
        return x + torch.rand(2)

    x = torch.zeros(2)
    state = torch.get_rng_state()
    capture(write, [x])
    assert torch.equal(x, torch.zeros(2))
    assert torch.equal(torch.get_rng_state(), state)
    norm = nn.BatchNorm1d(3).train()
    capture(norm, [torch.randn(4, 3)])
    assert norm.num_batches_tracked == 0 and torch.equal(norm.running_mean, torch.zeros(3))


def test_bad_arguments():
    with pytest.raises(ValueError, match="backend: got 'eager'; graphs can be captured for 'batch_invariant' and 'inductor'"):
        capture(torch.relu, [torch.randn(2)], backend="eager")
    with pytest.raises(OptionError, match="unknown option 'strickt'"):
        capture(torch.relu, [torch.randn(2)], options={"strickt": True})
    with pytest.raises(ValueError, match="stage: got 'lowered'; graph 0 inference has 'dynamo', 'captured'"):
        capture(torch.relu, [torch.randn(2)]).graphs[0].stage("lowered")
