"""A report sees every step of the post-grad pass, in its own context only, and may take over what the pass would raise."""

import threading

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import bi_inductor
from bi_inductor.passes.observe import Observer, observed_by
from bi_inductor.passes.op_classes import OpClass
from bi_inductor.passes.post_grad import PostGradPass


def traced(function, *inputs):
    return make_fx(function, tracing_mode="fake")(*inputs).graph


class Watcher(Observer):
    def __init__(self, tolerant=False):
        self.tolerant = tolerant
        self.events = []

    def stage(self, name, graph):
        self.events.append((name, [node.name for node in graph.nodes if node.op == "call_function"]))

    def classified(self, classes):
        self.events.append(("classes", {node.name: op_class for node, op_class in classes.items()}))

    def replaced(self, node, replacement):
        self.events.append(("replaced", node.name, [new.name for new in replacement]))

    def refused(self, nodes):
        self.events += [("refused", node.name) for node in nodes]


def test_every_step_is_told_in_order():
    watcher = Watcher()
    graph = traced(lambda x: torch.relu(x).sum(-1), torch.randn(2, 4))
    with observed_by(watcher):
        PostGradPass(bi_inductor.Options(), "")(graph)
    assert watcher.events == [
        ("captured", ["relu", "sum_1"]),
        ("classes", {"relu": OpClass.ELEMENTWISE, "sum_1": OpClass.REWRITTEN}),
        ("round_low_precision", ["relu", "sum_1"]),
        ("replaced", "sum_1", ["sum_default"]),
        ("rewrite", ["relu", "sum_default"]),
    ]


def test_a_tolerant_observer_is_told_what_would_raise():
    graph = traced(lambda x: torch.igamma(x, x).sum(-1), torch.randn(2, 4))
    with observed_by(Watcher()), pytest.raises(bi_inductor.UnsupportedOpError, match="igamma"):
        PostGradPass(bi_inductor.Options(), "")(graph)
    watcher = Watcher(tolerant=True)
    with observed_by(watcher):
        PostGradPass(bi_inductor.Options(), "")(graph)
    assert ("refused", "igamma") in watcher.events
    # What has a template is rewritten all the same.
    assert watcher.events[-1] == ("rewrite", ["igamma", "sum_default"])


def test_what_options_let_through_is_not_refused():
    watcher = Watcher(tolerant=True)
    with observed_by(watcher):
        PostGradPass(bi_inductor.Options(allow=("aten.igamma",)), "")(traced(lambda x: torch.igamma(x, x), torch.randn(2, 4)))
    assert not [event for event in watcher.events if event[0] == "refused"]


def test_observers_of_other_threads_and_past_ones_see_nothing():
    outer, past = Watcher(), Watcher()
    with observed_by(past):
        pass
    graph = traced(lambda x: x + 1, torch.randn(2))
    with observed_by(outer):
        thread = threading.Thread(target=PostGradPass(bi_inductor.Options(), ""), args=(graph,))
        thread.start()
        thread.join()
    assert outer.events == past.events == []


def test_observers_nest():
    outer, inner = Watcher(), Watcher()
    with observed_by(outer), observed_by(inner):
        PostGradPass(bi_inductor.Options(), "")(traced(lambda x: x + 1, torch.randn(2)))
    assert outer.events == inner.events != []
