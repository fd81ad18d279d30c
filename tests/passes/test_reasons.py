"""Every class has its reason, and the cases that differ from the class's usual one have theirs."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import bi_inductor
from bi_inductor.passes.classify import class_of
from bi_inductor.passes.op_classes import OpClass
from bi_inductor.passes.reasons import GENERAL, reason


def reasons(function, *inputs, **options):
    graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    calls = [node for node in graph.nodes if node.op == "call_function"]
    return {node.name: reason(node, class_of(node), bi_inductor.Options(**options)) for node in calls}


def test_every_class_has_a_reason():
    assert set(GENERAL) == set(OpClass)


@pytest.mark.parametrize(
    ("function", "node", "words"),
    [
        (lambda x: x + 1, "add", "that element's operands alone"),
        (lambda x: x.t(), "t", "no arithmetic"),
        (lambda x: x.sum(), "sum_1", "one fixed order takes its place"),
        (lambda x: x.to(torch.int64).sum(), "sum_1", "a sum of integers"),
        (lambda x: x.amax(-1), "amax", "between -0 and +0"),
        (lambda x: torch.ops.bi_inductor.softmax(x, -1), "softmax", "one of bi_inductor's operators"),
        (lambda x: torch.igamma(x, x), "igamma", "no template"),
        (lambda x: torch.asin(torch.complex(x, x)), "asin", "complex"),
        (lambda x: x.index_put((torch.tensor([0]),), x[:1], accumulate=True), "index_put", "one fixed order takes its place"),
        (lambda x: torch.linalg.matrix_exp(x[:, :3]), "linalg_matrix_exp", "one sample at a time"),
        (lambda x: x.max(-1)[0], "getitem", "picks one of several results"),
        (lambda x: torch.rand_like(x), "rand_like", "draws random numbers"),
    ],
)
def test_reason(function, node, words):
    assert words in reasons(function, torch.randn(3, 4))[node]


def test_an_allowed_op_says_so():
    (text,) = reasons(lambda x: torch.igamma(x, x), torch.randn(3, 4), allow=("aten.igamma",)).values()
    assert text.endswith("let through by option 'allow', its bits may vary")
