"""`bi_inductor.explain` says what a compile does, also to a model that no compile accepts."""

import json

import expecttest
import pytest
import torch
import torch._dynamo
from torch import nn

import bi_inductor
from bi_inductor.reports.explanation import Explanation


class Block(nn.Module):
    """A layer, a norm and a sum, with an op that has no template."""

    def __init__(self, refused=False):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.refused = refused

    def forward(self, x):
        y = torch.relu(self.layer(x))
        return torch.igamma(y, y) if self.refused else y.softmax(-1)


def without_lines(text):
    """Leaves out what moves with this file: where its lines are, and the pins, which have their own test. One line is shortened."""
    text = text.replace("; Inductor's code is pinned to one value", "; ...")
    return "\n".join(line.split(' at "')[0] for line in text.split("\npinned settings")[0].splitlines())


@torch.no_grad()
def explained(refused=False, **arguments):
    return bi_inductor.explain(Block(refused), torch.zeros(2, 4), **arguments)


class TestText(expecttest.TestCase):
    def test_supported(self):
        self.assertExpectedInline(
            without_lines(explained().text()).replace(torch.__version__, "VERSION"),
            """\
Block with backend 'batch_invariant', torch VERSION
1 graph, every op is supported

graph 0 inference: 8 nodes, 2 rewritten, 1 data movement, 1 elementwise
  aten._softmax.default became bi_inductor.softmax.default
  kernels
    bi_inductor.matmul.default(float32[2, 4], float32[4, 3], float32[3]) -> float32[2, 3]
      matmul: accumulates in float32, lanes: products 16
      docs/numerics.md section 3: `acc = ` lane sum, `L = 16`, of `a[m,k]*b[k,n]` over `k` (fma chains).
    bi_inductor.softmax.default(float32[2, 3], -1) -> float32[2, 3]
      softmax: accumulates in float32, lanes: denominator 128
      docs/numerics.md section 6: `softmax[i] = round(fl(e[i] / s))`
  nodes
    arg0_1 = placeholder -> float32[3, 4]
    arg1_1 = placeholder -> float32[3]
    arg2_1 = placeholder -> float32[2, 4]
    permute = aten.permute.default(arg0_1, [1, 0]) -> float32[4, 3]  [data movement]
    matmul = bi_inductor.matmul.default(arg2_1, permute, arg1_1) -> float32[2, 3]  [rewritten]
    relu = aten.relu.default(matmul) -> float32[2, 3]  [elementwise]
    softmax_default = bi_inductor.softmax.default(relu, -1) -> float32[2, 3]  [rewritten]
    output = output([softmax_default])
  data movement: moves or creates data, no arithmetic
  elementwise: its value follows from that element's operands alone; ... (docs/numerics.md section 10)
  rewritten: one of bi_inductor's operators: one fixed order of arithmetic""",
        )

    def test_refused(self):
        text = without_lines(explained(True).text())
        self.assertExpectedInline(
            "\n".join(text.splitlines()[1:6]),
            """\
1 graph, a compile raises UnsupportedOpError for 1 op

graph 0 inference: 8 nodes, 1 data movement, 1 rewritten, 1 elementwise, 1 unsupported
  refused: aten.igamma.default(float32[2, 3], float32[2, 3]) -> float32[2, 3]: may give a sample other bits in another batch, and has no template: Inductor calls ATen's elementwise kernel, whose vector body and tail round differently
  kernels""",  # noqa: E501
        )

    def test_on_a_gpu(self):
        def model(x):
            # No tile of attention has room for this head dim.
            return nn.functional.scaled_dot_product_attention(*[(x @ x.mT).softmax(-1)[:, None]] * 3)

        text = without_lines(bi_inductor.explain(model, torch.zeros(2, 320, 64, dtype=torch.bfloat16), target="sm_90").text())
        self.assertExpectedInline(
            text.split("  nodes")[0].replace(torch.__version__, "VERSION"),
            """\
TestText.test_on_a_gpu.<locals>.model with backend 'batch_invariant' on sm_90, torch VERSION
1 graph, a compile raises UnsupportedOpError for 1 op

graph 0 inference: 12 nodes, 7 data movement, 3 rewritten
  refused: bi_inductor.attention.default(bfloat16[2, 1, 320, 320], bfloat16[2, 1, 320, 320], bfloat16[2, 1, 320, 320]) -> bfloat16[2, 1, 320, 320]: bi_inductor.attention has no Triton template for this call, so it cannot run on sm_90
  aten.bmm.default became bi_inductor.matmul.default
  aten._softmax.default became bi_inductor.softmax.default
  kernels
    bi_inductor.matmul.default(bfloat16[2, 320, 64], bfloat16[2, 64, 320]) -> bfloat16[2, 320, 320]
      matmul: accumulates in float32
      BLOCK_M=64, BLOCK_N=64, BLOCK_K=64, GROUP_M=8, 4 warps, 4 stages
      docs/numerics.md section 15: one chain over blocks of `BLOCK_K` products in ascending `k`
    bi_inductor.softmax.default(bfloat16[2, 320, 320], -1) -> bfloat16[2, 320, 320]
      softmax: accumulates in float32, lanes: denominator 128
      UNROLL=4, BLOCK=256, 1 warp, 1 stage
      docs/numerics.md section 6: `softmax[i] = round(fl(e[i] / s))`
""",  # noqa: E501
        )


def test_json_keeps_everything_and_reads_back():
    explanation = explained(True)
    data = json.loads(json.dumps(explanation.json()))
    assert Explanation.from_json(data) == explanation
    (graph,) = data["graphs"]
    (kernel,) = graph["kernels"]
    assert kernel["kernel"] == "matmul" and kernel["symbol"].startswith("bi_matmul_float32_")
    assert kernel["lanes"] == "products 16" and kernel["section"] == 3
    assert data["pins"]["shape_padding"] == {"value": False, "reason": bi_inductor.pins.PINS["shape_padding"].reason}
    modules = {node["op"]: node["module"] for node in graph["stages"][-1]["nodes"]}
    assert modules["bi_inductor.matmul.default"] == "layer"
    with pytest.raises(ValueError, match="no saved explanation"):
        Explanation.from_json({"format": "something else"})


def test_a_gpus_kernels_read_back():
    explanation = explained(target="gfx942")
    assert explanation.target == "gfx942" and Explanation.from_json(json.loads(json.dumps(explanation.json()))) == explanation
    product, _ = explanation.kernels(explanation.graphs[0])
    assert (product.symbol, product.section) == ("", 15) and "BLOCK_N=64" in product.configuration


def test_pins_are_all_named():
    text = explained().text()
    for name, pin in bi_inductor.pins.PINS.items():
        assert f"  {name} = {pin.value!r}: {pin.reason}" in text


def test_graph_diff():
    explanation = explained()
    assert "+ %6 = bi_inductor.softmax.default(%5, -1)" in explanation.graph_diff("rewrite").text()
    with pytest.raises(ValueError, match=r"stage: got 'lowered'; allowed are 'captured', .*'inductor'"):
        explanation.graph_diff("lowered")


def test_opaque_ops_are_reported_without_a_warning(recwarn):
    with torch.library._scoped_library("explained", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        torch.library.register_fake("explained::twice", lambda x: x.clone(), lib=library)
        explanation = bi_inductor.explain(torch.ops.explained.twice, torch.zeros(2))
    assert "1 op opaque" in explanation.verdict
    assert "opaque: explained.twice.default(float32[2]) -> float32[2]: a custom op whose numerics are unknown" in explanation.text()
    assert not [warning for warning in recwarn if warning.category is bi_inductor.OpaqueOpWarning]


def test_graph_breaks_say_what_to_do():
    def function(x):
        x = torch.relu(x)
        torch._dynamo.graph_break()
        return x + 1

    lines = bi_inductor.explain(function, torch.zeros(2)).text().splitlines()
    assert lines[1] == "2 graphs, 1 graph break, every op is supported"
    assert lines[2].startswith("graph break: ") and __file__ in lines[2]
    assert lines[3].startswith("between graphs code runs in eager") and "fullgraph=True" in lines[3]


def test_no_graph_at_all():
    explanation = bi_inductor.explain(lambda x: x, torch.zeros(2))
    assert "no graph was compiled" in explanation.text()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"target": "sm_70"}, ValueError, "target: got 'sm_70'; allowed are None, 'cpu' and the GPUs 'sm_80', 'sm_90', 'sm_100', 'gfx942'"),
        ({"target": "sm_90", "backend": "inductor"}, ValueError, "target: got 'sm_90' with backend 'inductor'"),
        ({"backend": "eager"}, ValueError, "backend: got 'eager'"),
        ({"options": {"max_autotune": True}}, bi_inductor.OptionError, "would undo a pin"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        explained(**arguments)


def test_what_cannot_be_called_and_what_is_elsewhere():
    with pytest.raises(TypeError, match="model: got str"):
        bi_inductor.explain("model")
    with pytest.raises(ValueError, match=r"parameter 'layer.weight' is on device meta, .*\.cpu\(\)"):
        bi_inductor.explain(Block().to("meta"), torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"input \[0\]\['x'\] is on device meta"):
        bi_inductor.explain(lambda inputs: inputs["x"], {"x": torch.zeros(2, device="meta")})
