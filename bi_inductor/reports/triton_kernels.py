"""What an operator of bi_inductor runs on a GPU: its pinned configuration and where its numerics are another than on the CPU."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING

import torch

from bi_inductor.targets.description import configuration_text
from bi_inductor.templates import gpu
from bi_inductor.templates.library import FLOAT8

if TYPE_CHECKING:
    from bi_inductor.reports.capture import CapturedGraph
    from bi_inductor.reports.records import GraphRecord, NodeRecord

GPU_SECTION = 15

# One program of one warp a row; the same bits as the C++ kernels.
ROWS = (
    "sum", "mean", "prod", "var", "std", "softmax", "log_softmax", "layer_norm", "layer_norm_statistics", "rms_norm", "rms_norm_statistics",
    "group_norm", "group_norm_statistics",
)  # fmt: skip

# One lane a chain; the same bits as the C++ kernels but for the functions of logcumsumexp.
SCANS = ("cumsum", "cumprod", "logcumsumexp")

# A chain an element, without atomic operations; the same bits as the C++ kernels.
SCATTERS = ("scatter", "embedding_backward")

# How many of the first operands have a last dim that is a head dim: queries, keys and values. A block of a cache holds both in one.
ATTENDING = {"attention": 3, "attention_lse": 2, "paged_attention": 1}

# Inductor writes it as any pointwise op: integers have one value in every order.
POINTWISE = "philox"

_CHAIN = "one chain over blocks of `BLOCK_K` products in ascending `k`"
_RUNS = "runs of 256 products along `k`"
_STORED = "elements are read as they are stored and converted in registers"
_CHUNKS = "Chunks are merged in order"
_BLOCKS = "`paged_attention` has the bits of `attention` over all keys of the request"
_LIBRARY = "`log1p` and `exp` of `logcumsumexp` are the device library's"


@dataclasses.dataclass(frozen=True)
class TritonKernel:
    """One call's Triton kernel.

    Attributes:
        configuration: sizes of its blocks, warps and pipeline stages; "" for Inductor's own pointwise code.
        quote: words of docs/numerics.md, section GPU_SECTION; "" where the definition is the CPU's.
    """

    configuration: str
    quote: str = ""


def triton_kernel(operator: str, operands: list[str], result: str, target: str) -> TritonKernel | None:
    """The kernel that an operator runs on a target; None for one that has no Triton template.

    Args:
        operator: its name without the namespace.
        operands, result: dtype and shape of its tensors, as ``records.value_text`` writes them.
        target: of ``bi_inductor.templates.gpu.TARGETS``.
    """
    from bi_inductor.templates.attention import configurations as attention
    from bi_inductor.templates.common.triton_rows import CONSTANTS, STAGES, WARPS
    from bi_inductor.templates.cumsum import configurations as scan
    from bi_inductor.templates.grouped_matmul.configurations import GROUPED_DIMS
    from bi_inductor.templates.grouped_matmul.configurations import stages as grouped_stages
    from bi_inductor.templates.grouped_matmul.kernel import GROUPED
    from bi_inductor.templates.matmul import configurations as matmul
    from bi_inductor.templates.sample_sum import configurations as sample_sum
    from bi_inductor.templates.scatter import configurations as scatter

    if operator == POINTWISE:
        return TritonKernel("")
    if operator in ROWS:
        return TritonKernel(configuration_text(CONSTANTS, WARPS, STAGES))
    if operator in SCANS:
        return TritonKernel(configuration_text(scan.CONSTANTS, WARPS, STAGES), _LIBRARY if operator == "logcumsumexp" else "")
    if operator in SCATTERS:
        return TritonKernel(configuration_text(scatter.CONSTANTS, WARPS, STAGES))
    if operator == "sample_sum":
        return TritonKernel(configuration_text(sample_sum.CONSTANTS, sample_sum.WARPS, sample_sum.STAGES))
    if operator in ("matmul", "grouped_matmul", "convolution", "scaled_matmul"):
        dtype, sizes = _tensor(operands[0])[0], _tensor(result)[1]
        columns = sizes[-1:]
        if _tensor(result)[0] in set(FLOAT8) - set(matmul.KNOWN_FLOAT8[target]):
            return None
        if operator == "convolution":
            # The positions of a sample.
            columns = sizes[2:]
        tile = matmul.configuration(target, dtype, math.prod(map(int, columns)) if all(size.isdigit() for size in columns) else None)
        quote = _STORED if operator == "scaled_matmul" else _CHAIN if dtype in matmul.CHAINED else _RUNS
        stages = tile.stages
        if operator == "grouped_matmul":
            kind, _ = GROUPED_DIMS[GROUPED[len(_tensor(operands[0])[1]), len(_tensor(operands[1])[1])]]
            stages = grouped_stages(target, tile, dtype, kind)
        return TritonKernel(configuration_text(tile.constants, tile.warps, stages), quote)
    if operator in ATTENDING:
        dtype, _ = _tensor(operands[0])
        dims = [int(_tensor(operand)[1][-1]) for operand in operands[: ATTENDING[operator]]]
        if max(dims) > attention.LARGEST_HEAD_DIM:
            return None
        chosen = attention.configuration(target, dtype, max(dims))
        # Programs that share keys have this configuration and these bits too.
        quote = _BLOCKS if operator == "paged_attention" else _CHUNKS
        return TritonKernel(configuration_text({"BLOCK_M": chosen.block_m, "CHUNK": chosen.chunk}, chosen.warps, chosen.stages), quote)
    return None


def kernel_on(target: str, record: GraphRecord, node: NodeRecord) -> TritonKernel | None:
    """``triton_kernel`` of a node of a graph that calls an operator of ours."""
    operands = [record.nodes[i].value for i in node.inputs if "[" in record.nodes[i].value]
    return triton_kernel(node.op.split(".")[1], operands, node.value, target)


def refused_on(target: str, graph: CapturedGraph) -> CapturedGraph:
    """The graph with every call that a compile for the GPU ``target`` would refuse: those of operators that exist in C++ only."""
    record = graph.stages[-1]
    found = []
    for node in record.nodes:
        if node.op.startswith("bi_inductor.") and kernel_on(target, record, node) is None:
            arguments = "".join(
                piece if isinstance(piece, str) else record.nodes[piece].value or record.nodes[piece].name for piece in node.arguments
            )
            reason = f"{node.op.removesuffix('.default')} has no Triton template for this call, so it cannot run on {target}"
            found.append(dataclasses.replace(node, arguments=(arguments,), op_class="unsupported", reason=reason))
    return dataclasses.replace(graph, refused=(*graph.refused, *found))


def check_target(target: str | None) -> str:
    """ "cpu" for None. Raises ValueError for a name that is neither "cpu" nor a GPU of the tables."""
    if target in (None, "cpu"):
        return "cpu"
    if target not in gpu.TARGETS:
        raise ValueError(f"target: got {target!r}; allowed are None, 'cpu' and the GPUs {', '.join(map(repr, gpu.TARGETS))}")
    return target


def _tensor(text: str) -> tuple[torch.dtype, list[str]]:
    """Of "float32[8, s0]": the dtype and the sizes, which may be expressions."""
    match = re.fullmatch(r"(\w+)\[(.*)\]", text)
    assert match is not None, text
    dtype: torch.dtype = getattr(torch, match[1])
    return dtype, match[2].split(", ")
