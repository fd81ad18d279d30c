"""The pass that Inductor runs on each graph before its own post-grad passes: classify every node, rewrite those that have a template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, GraphModule, Node

from bi_inductor.options import Options
from bi_inductor.passes.classify import classes_of, refused_nodes, require_allowed, require_no_python, require_supported
from bi_inductor.passes.mean_square_norm import join_mean_square_norms
from bi_inductor.passes.mixing import GraphInput, find_mixing, mixing_reason, require_unmixed
from bi_inductor.passes.native_bfloat16 import take_native_products
from bi_inductor.passes.observe import Announcer
from bi_inductor.passes.op_classes import OpClass
from bi_inductor.passes.rewrite import rewrite
from bi_inductor.pointwise import round_low_precision

if TYPE_CHECKING:
    from bi_inductor.passes.mixing.call import Finding


class PostGradPass(CustomGraphPass):
    """Inductor's ``post_grad_custom_pre_pass`` (torch._inductor.custom_graph_pass, checked in 2.13.0 to 2.15.0).

    Args:
        options: what to let through.
        version: hash of our sources; with the options and the dims of samples it makes the cache key.
        inputs: of Dynamo's graph, with the dims that hold samples.
        packaged: the graph will run without Python, so that operators that are written in it are refused.

    Attributes:
        runs: how many graphs the pass saw; a compiled graph that comes from a cache is none of them.
        warned: how many warnings it gave.
    """

    def __init__(self, options: Options, version: str, inputs: tuple[GraphInput, ...] = (), packaged: bool = False) -> None:
        self.options = options
        self.version = version
        self.inputs = inputs
        self.packaged = packaged
        self.runs = 0
        self.warned = 0

    def __call__(self, graph: Graph) -> None:
        """Classifies and rewrites ``graph`` in place. Raises UnsupportedOpError, OpaqueOpError, SampleMixingError."""
        self.runs += 1
        observers = Announcer()
        observers.stage("captured", graph)
        classes = classes_of(graph)
        findings = find_mixing(graph, self.inputs)
        observers.mixing({finding.node: mixing_reason(finding) for finding in findings})
        observers.classified(classes)
        observers.refused(refused_nodes([node for node, op_class in classes.items() if op_class is OpClass.UNSUPPORTED], self.options))
        if not observers.tolerant:
            self._warn(classes, findings)
        if self.packaged:
            require_no_python(classes)
        round_low_precision(graph)
        observers.stage("round_low_precision", graph)
        declined = rewrite(graph, observers.replaced)
        without_template = [node for node in declined if classes[node] is OpClass.REWRITTEN]
        observers.refused(refused_nodes(without_template, self.options))
        if not observers.tolerant:
            require_supported(without_template, self.options)
        join_mean_square_norms(graph)
        observers.stage("rewrite", graph)
        if self.options.native_bfloat16:
            take_native_products(graph)
            observers.stage("native_bfloat16", graph)

    def repeat_warnings(self, gm: GraphModule) -> None:
        """Warns as at the first compile of ``gm``, whose compiled graph a cache has; the graphs it calls come before it, as there."""
        inner = [module for name, module in gm.named_modules() if name and isinstance(module, GraphModule)]
        for graph in (module.graph for module in (*reversed(inner), gm)):
            self._warn(classes_of(graph), find_mixing(graph, self.inputs))

    def _warn(self, classes: Mapping[Node, OpClass], findings: Sequence[Finding]) -> None:
        self.warned += require_allowed(classes, self.options) + require_unmixed(findings, self.options)

    def uuid(self) -> str:
        """Part of the keys of Inductor's FX graph cache and AOTAutograd's cache."""
        return f"bi_inductor:{self.version}:{self.options}:{[given.dim for given in self.inputs]}:{self.packaged}"
