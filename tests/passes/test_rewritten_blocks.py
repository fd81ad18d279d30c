"""What the rewriting makes of a Llama's and of a BERT's layer: the graphs that Inductor gets, for a GPU.

EXPECTTEST_ACCEPT=1 rewrites them.
"""

from __future__ import annotations

import expecttest
import torch

import bi_inductor
from tests.bi_inductor.targets.programs import BertBlock, LlamaBlock


@torch.no_grad()
def rewritten(model: torch.nn.Module, *inputs: torch.Tensor) -> str:
    """The last graph, one line a node. Nothing in it is refused on an H100."""
    (graph,) = bi_inductor.explain(model, *inputs, target="sm_90").graphs
    assert graph.refused == ()
    return graph.stages[-1].text()


class TestBlocks(expecttest.TestCase):
    def test_llama_block(self) -> None:
        table = torch.zeros(16, 64, dtype=torch.bfloat16)
        text = rewritten(LlamaBlock().bfloat16(), torch.zeros(2, 16, 512, dtype=torch.bfloat16), table, table)
        self.assertExpectedInline(
            text,
            """\
arg0_1 = placeholder -> bfloat16[512]
arg1_1 = placeholder -> bfloat16[2, 16, 512]
arg2_1 = placeholder -> bfloat16[512, 512]
arg3_1 = placeholder -> bfloat16[16, 64]
arg4_1 = placeholder -> bfloat16[16, 64]
arg5_1 = placeholder -> bfloat16[128, 512]
arg6_1 = placeholder -> bfloat16[128, 512]
arg7_1 = placeholder -> bfloat16[512, 512]
arg8_1 = placeholder -> bfloat16[512]
arg9_1 = placeholder -> bfloat16[1536, 512]
arg10_1 = placeholder -> bfloat16[1536, 512]
arg11_1 = placeholder -> bfloat16[512, 1536]
rms_norm = bi_inductor.rms_norm.default(arg1_1, 1, arg0_1, 1e-05) -> bfloat16[2, 16, 512]
view = aten.view.default(rms_norm, [32, 512]) -> bfloat16[32, 512]
permute = aten.permute.default(arg2_1, [1, 0]) -> bfloat16[512, 512]
matmul = bi_inductor.matmul.default(view, permute) -> bfloat16[32, 512]
view_1 = aten.view.default(matmul, [2, 16, 512]) -> bfloat16[2, 16, 512]
view_2 = aten.view.default(view_1, [2, 16, 8, 64]) -> bfloat16[2, 16, 8, 64]
permute_1 = aten.permute.default(view_2, [0, 2, 1, 3]) -> bfloat16[2, 8, 16, 64]
split = aten.split.Tensor(permute_1, 32, -1) -> (bfloat16[2, 8, 16, 32], bfloat16[2, 8, 16, 32])
getitem = getitem(split, 0) -> bfloat16[2, 8, 16, 32]
getitem_1 = getitem(split, 1) -> bfloat16[2, 8, 16, 32]
view_3 = aten.view.default(rms_norm, [32, 512]) -> bfloat16[32, 512]
permute_2 = aten.permute.default(arg5_1, [1, 0]) -> bfloat16[512, 128]
matmul_1 = bi_inductor.matmul.default(view_3, permute_2) -> bfloat16[32, 128]
view_4 = aten.view.default(matmul_1, [2, 16, 128]) -> bfloat16[2, 16, 128]
view_5 = aten.view.default(view_4, [2, 16, 2, 64]) -> bfloat16[2, 16, 2, 64]
permute_3 = aten.permute.default(view_5, [0, 2, 1, 3]) -> bfloat16[2, 2, 16, 64]
split_1 = aten.split.Tensor(permute_3, 32, -1) -> (bfloat16[2, 2, 16, 32], bfloat16[2, 2, 16, 32])
getitem_2 = getitem(split_1, 0) -> bfloat16[2, 2, 16, 32]
getitem_3 = getitem(split_1, 1) -> bfloat16[2, 2, 16, 32]
mul = aten.mul.Tensor(permute_1, arg3_1) -> bfloat16[2, 8, 16, 64]
neg = aten.neg.default(getitem_1) -> bfloat16[2, 8, 16, 32]
cat = aten.cat.default([neg, getitem], -1) -> bfloat16[2, 8, 16, 64]
mul_1 = aten.mul.Tensor(cat, arg4_1) -> bfloat16[2, 8, 16, 64]
add = aten.add.Tensor(mul, mul_1) -> bfloat16[2, 8, 16, 64]
expand = aten.expand.default(add, [2, 8, 16, 64]) -> bfloat16[2, 8, 16, 64]
mul_2 = aten.mul.Tensor(permute_3, arg3_1) -> bfloat16[2, 2, 16, 64]
neg_1 = aten.neg.default(getitem_3) -> bfloat16[2, 2, 16, 32]
cat_1 = aten.cat.default([neg_1, getitem_2], -1) -> bfloat16[2, 2, 16, 64]
mul_3 = aten.mul.Tensor(cat_1, arg4_1) -> bfloat16[2, 2, 16, 64]
add_1 = aten.add.Tensor(mul_2, mul_3) -> bfloat16[2, 2, 16, 64]
expand_1 = aten.expand.default(add_1, [2, 2, 16, 64]) -> bfloat16[2, 2, 16, 64]
view_6 = aten.view.default(rms_norm, [32, 512]) -> bfloat16[32, 512]
permute_4 = aten.permute.default(arg6_1, [1, 0]) -> bfloat16[512, 128]
matmul_2 = bi_inductor.matmul.default(view_6, permute_4) -> bfloat16[32, 128]
view_7 = aten.view.default(matmul_2, [2, 16, 128]) -> bfloat16[2, 16, 128]
view_8 = aten.view.default(view_7, [2, 16, 2, 64]) -> bfloat16[2, 16, 2, 64]
permute_5 = aten.permute.default(view_8, [0, 2, 1, 3]) -> bfloat16[2, 2, 16, 64]
expand_2 = aten.expand.default(permute_5, [2, 2, 16, 64]) -> bfloat16[2, 2, 16, 64]
attention = bi_inductor.attention.default(expand, expand_1, expand_2, None, True) -> bfloat16[2, 8, 16, 64]
permute_6 = aten.permute.default(attention, [0, 2, 1, 3]) -> bfloat16[2, 16, 8, 64]
view_9 = aten.view.default(permute_6, [2, 16, 512]) -> bfloat16[2, 16, 512]
view_10 = aten.view.default(view_9, [32, 512]) -> bfloat16[32, 512]
permute_7 = aten.permute.default(arg7_1, [1, 0]) -> bfloat16[512, 512]
matmul_3 = bi_inductor.matmul.default(view_10, permute_7) -> bfloat16[32, 512]
view_11 = aten.view.default(matmul_3, [2, 16, 512]) -> bfloat16[2, 16, 512]
add_2 = aten.add.Tensor(arg1_1, view_11) -> bfloat16[2, 16, 512]
rms_norm_1 = bi_inductor.rms_norm.default(add_2, 1, arg8_1, 1e-05) -> bfloat16[2, 16, 512]
view_12 = aten.view.default(rms_norm_1, [32, 512]) -> bfloat16[32, 512]
permute_8 = aten.permute.default(arg9_1, [1, 0]) -> bfloat16[512, 1536]
matmul_4 = bi_inductor.matmul.default(view_12, permute_8) -> bfloat16[32, 1536]
view_13 = aten.view.default(matmul_4, [2, 16, 1536]) -> bfloat16[2, 16, 1536]
convert_element_type = prims.convert_element_type.default(view_13, torch.float32) -> float32[2, 16, 1536]
neg_2 = aten.neg.default(convert_element_type) -> float32[2, 16, 1536]
exp = aten.exp.default(neg_2) -> float32[2, 16, 1536]
add_3 = aten.add.Tensor(exp, 1) -> float32[2, 16, 1536]
div = aten.div.Tensor(convert_element_type, add_3) -> float32[2, 16, 1536]
convert_element_type_1 = prims.convert_element_type.default(div, torch.bfloat16) -> bfloat16[2, 16, 1536]
view_14 = aten.view.default(rms_norm_1, [32, 512]) -> bfloat16[32, 512]
permute_9 = aten.permute.default(arg10_1, [1, 0]) -> bfloat16[512, 1536]
matmul_5 = bi_inductor.matmul.default(view_14, permute_9) -> bfloat16[32, 1536]
view_15 = aten.view.default(matmul_5, [2, 16, 1536]) -> bfloat16[2, 16, 1536]
mul_4 = aten.mul.Tensor(convert_element_type_1, view_15) -> bfloat16[2, 16, 1536]
view_16 = aten.view.default(mul_4, [32, 1536]) -> bfloat16[32, 1536]
permute_10 = aten.permute.default(arg11_1, [1, 0]) -> bfloat16[1536, 512]
matmul_6 = bi_inductor.matmul.default(view_16, permute_10) -> bfloat16[32, 512]
view_17 = aten.view.default(matmul_6, [2, 16, 512]) -> bfloat16[2, 16, 512]
add_4 = aten.add.Tensor(add_2, view_17) -> bfloat16[2, 16, 512]
output = output([add_4])""",
        )

    def test_bert_block(self) -> None:
        text = rewritten(BertBlock().half(), torch.zeros(4, 16, 384, dtype=torch.float16), torch.ones(4, 16, dtype=torch.bool))
        self.assertExpectedInline(
            text,
            """\
arg0_1 = placeholder -> float16[1152, 384]
arg1_1 = placeholder -> float16[1152]
arg2_1 = placeholder -> float16[4, 16, 384]
arg3_1 = placeholder -> bool[4, 16]
arg4_1 = placeholder -> float16[384, 384]
arg5_1 = placeholder -> float16[384]
arg6_1 = placeholder -> float16[384]
arg7_1 = placeholder -> float16[384]
arg8_1 = placeholder -> float16[1536, 384]
arg9_1 = placeholder -> float16[1536]
arg10_1 = placeholder -> float16[384, 1536]
arg11_1 = placeholder -> float16[384]
arg12_1 = placeholder -> float16[384]
arg13_1 = placeholder -> float16[384]
view = aten.view.default(arg2_1, [64, 384]) -> float16[64, 384]
permute = aten.permute.default(arg0_1, [1, 0]) -> float16[384, 1152]
matmul = bi_inductor.matmul.default(view, permute, arg1_1) -> float16[64, 1152]
view_1 = aten.view.default(matmul, [4, 16, 1152]) -> float16[4, 16, 1152]
view_2 = aten.view.default(view_1, [4, 16, 3, 12, 32]) -> float16[4, 16, 3, 12, 32]
permute_1 = aten.permute.default(view_2, [2, 0, 3, 1, 4]) -> float16[3, 4, 12, 16, 32]
select = aten.select.int(permute_1, 0, 0) -> float16[4, 12, 16, 32]
expand = aten.expand.default(select, [4, 12, 16, 32]) -> float16[4, 12, 16, 32]
select_1 = aten.select.int(permute_1, 0, 1) -> float16[4, 12, 16, 32]
expand_1 = aten.expand.default(select_1, [4, 12, 16, 32]) -> float16[4, 12, 16, 32]
select_2 = aten.select.int(permute_1, 0, 2) -> float16[4, 12, 16, 32]
expand_2 = aten.expand.default(select_2, [4, 12, 16, 32]) -> float16[4, 12, 16, 32]
unsqueeze = aten.unsqueeze.default(arg3_1, 1) -> bool[4, 1, 16]
unsqueeze_1 = aten.unsqueeze.default(unsqueeze, 2) -> bool[4, 1, 1, 16]
expand_3 = aten.expand.default(unsqueeze_1, [4, 12, 16, 16]) -> bool[4, 12, 16, 16]
attention = bi_inductor.attention.default(expand, expand_1, expand_2, expand_3) -> float16[4, 12, 16, 32]
permute_2 = aten.permute.default(attention, [0, 2, 1, 3]) -> float16[4, 16, 12, 32]
view_3 = aten.view.default(permute_2, [4, 16, 384]) -> float16[4, 16, 384]
view_4 = aten.view.default(view_3, [64, 384]) -> float16[64, 384]
permute_3 = aten.permute.default(arg4_1, [1, 0]) -> float16[384, 384]
matmul_1 = bi_inductor.matmul.default(view_4, permute_3, arg5_1) -> float16[64, 384]
view_5 = aten.view.default(matmul_1, [4, 16, 384]) -> float16[4, 16, 384]
add = aten.add.Tensor(arg2_1, view_5) -> float16[4, 16, 384]
layer_norm_default = bi_inductor.layer_norm.default(add, 1, arg6_1, arg7_1, 1e-05) -> float16[4, 16, 384]
view_6 = aten.view.default(layer_norm_default, [64, 384]) -> float16[64, 384]
permute_4 = aten.permute.default(arg8_1, [1, 0]) -> float16[384, 1536]
matmul_2 = bi_inductor.matmul.default(view_6, permute_4, arg9_1) -> float16[64, 1536]
view_7 = aten.view.default(matmul_2, [4, 16, 1536]) -> float16[4, 16, 1536]
convert_element_type = prims.convert_element_type.default(view_7, torch.float32) -> float32[4, 16, 1536]
mul = aten.mul.Tensor(convert_element_type, 0.5) -> float32[4, 16, 1536]
mul_1 = aten.mul.Tensor(convert_element_type, 0.7071067811865476) -> float32[4, 16, 1536]
erf = aten.erf.default(mul_1) -> float32[4, 16, 1536]
add_1 = aten.add.Tensor(erf, 1) -> float32[4, 16, 1536]
mul_2 = aten.mul.Tensor(mul, add_1) -> float32[4, 16, 1536]
convert_element_type_1 = prims.convert_element_type.default(mul_2, torch.float16) -> float16[4, 16, 1536]
view_8 = aten.view.default(convert_element_type_1, [64, 1536]) -> float16[64, 1536]
permute_5 = aten.permute.default(arg10_1, [1, 0]) -> float16[1536, 384]
matmul_3 = bi_inductor.matmul.default(view_8, permute_5, arg11_1) -> float16[64, 384]
view_9 = aten.view.default(matmul_3, [4, 16, 384]) -> float16[4, 16, 384]
add_2 = aten.add.Tensor(layer_norm_default, view_9) -> float16[4, 16, 384]
layer_norm_default_1 = bi_inductor.layer_norm.default(add_2, 1, arg12_1, arg13_1, 1e-05) -> float16[4, 16, 384]
output = output([layer_norm_default_1])""",
        )
