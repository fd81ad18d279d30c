"""Graphs as records: every argument kept, nodes by index, nothing that differs between two equal graphs."""

import dataclasses
import json

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from bi_inductor.reports.records import GraphRecord, module_path, record_graph, value_text


def test_text_of_a_graph():
    def function(x, y):
        parts = torch.split(x, [1, 2], -1)
        return torch.cat([parts[1], y.sum(0, keepdim=True)], 0).to(dtype=torch.float64)

    record = record_graph("traced", make_fx(function, tracing_mode="fake")(torch.randn(2, 3), torch.randn(2, 2)).graph)
    assert record.text() == (
        "x_1 = placeholder -> float32[2, 3]\n"
        "y_1 = placeholder -> float32[2, 2]\n"
        "split_with_sizes = aten.split_with_sizes.default(x_1, [1, 2], -1) -> (float32[2, 1], float32[2, 2])\n"
        "getitem = getitem(split_with_sizes, 0) -> float32[2, 1]\n"
        "getitem_1 = getitem(split_with_sizes, 1) -> float32[2, 2]\n"
        "sum_1 = aten.sum.dim_IntList(y_1, [0], True) -> float32[1, 2]\n"
        "cat = aten.cat.default([getitem_1, sum_1]) -> float32[3, 2]\n"
        "_to_copy = aten._to_copy.default(cat, dtype=torch.float64) -> float64[3, 2]\n"
        "output = output(_to_copy)"
    )


def test_json_and_back():
    record = record_graph("traced", make_fx(lambda x: x[:, 1:] * 2, tracing_mode="fake")(torch.randn(2, 3)).graph)
    assert GraphRecord.from_json(json.loads(json.dumps(dataclasses.asdict(record)))) == record


def test_modules_functions_and_methods_of_a_graph_before_tracing():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return nn.functional.relu(self.layer(x)).view(-1)

    record = record_graph("symbolic", torch.fx.symbolic_trace(Model()).graph)
    assert [node.op for node in record.nodes] == ["placeholder", "module layer", "torch.nn.functional.relu", ".view", "output"]
    assert record.nodes[1].inputs == (0,)


def test_an_address_in_an_argument_is_left_out():
    graph = torch.fx.Graph()
    graph.call_function(print, (object(),))
    assert record_graph("", graph).nodes[0].arguments == ("<object object>",)


def test_values():
    assert value_text(torch.empty(2, 0, dtype=torch.bool)) == "bool[2, 0]"
    assert value_text(torch.empty(())) == "float32[]"
    assert value_text((torch.empty(1), None, 3)) == "(float32[1], None, 3)"
    assert value_text(None) == ""


def test_module_paths_begin_at_the_model():
    graph = torch.fx.Graph()
    node = graph.call_function(torch.relu, (1,))
    assert module_path(node) == ""
    node.meta["nn_module_stack"] = {"1": ("L['self']", nn.Module), "2": ("L['self'].layers.0", nn.Linear)}
    assert module_path(node) == "layers.0"
    node.meta["nn_module_stack"] = {"1": ("G['model'].head", nn.Module)}
    assert module_path(node) == "head"
