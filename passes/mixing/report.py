"""The text of a finding: what mixes, where, and how the samples came there."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch.fx import Node

from bi_inductor.errors import SampleMixingError, SampleMixingWarning
from bi_inductor.options import Options
from bi_inductor.passes.classify import called_op, describe, source_line
from bi_inductor.passes.mixing.states import Dim, Order, Step
from bi_inductor.passes.op_classes import op_name

if TYPE_CHECKING:
    from bi_inductor.passes.mixing.call import Finding

# How many layouts of a long chain are shown at its end; the input is always shown.
SHOWN = 5


def chain_of(step: Step | None, names: Mapping[Node, str]) -> tuple[str, ...]:
    """The layouts that samples went through, from the input on."""
    steps: list[Step] = []
    while step is not None:
        steps.append(step)
        step = step.before
    steps.reverse()
    if len(steps) > SHOWN + 1:
        texts = [_text(steps[0], names), f"... {len(steps) - SHOWN - 1} more ..."]
        steps = steps[-SHOWN:]
    else:
        texts = []
    return (*texts, *(_text(step, names) for step in steps))


def _text(step: Step, names: Mapping[Node, str]) -> str:
    value = step.node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else [value]
    fitting = next((v for v in values if isinstance(v, torch.Tensor) and v.dim() == len(step.dims)), None)
    sizes = [str(size) for size in fitting.shape] if fitting is not None else ["?"] * len(step.dims)
    dims = ", ".join(_dim(dim, size, step.order) for dim, size in zip(step.dims, sizes, strict=True))
    name = names.get(step.node, step.node.name)
    where = f" from sample {step.offset} on" if step.offset and step.order.node is None else ""
    return f"{name} [{dims}]{where}"


def _dim(dim: Dim, size: str, order: Order) -> str:
    if not any(factor.stride for factor in dim):
        return size
    word = "batch" if order.node is None else f"order of {order.node.name}"
    parts = []
    for factor in dim:
        if not factor.stride:
            parts.append(str(factor.size))
        elif factor.size == order.size and factor.stride == 1:
            parts.append(word)
        else:
            every = f" every {factor.stride}" if factor.stride != 1 else ""
            parts.append(f"{factor.size} of {word}{every}")
    return " * ".join(parts)


def mixing_reason(finding: Finding) -> str:
    """What a node does to the samples, and the layouts from the input to it, as one line."""
    return f"{finding.why}; samples: {' -> '.join(finding.chain)}" if finding.chain else finding.why


def require_unmixed(findings: Sequence[Finding], options: Options) -> int:
    """One SampleMixingWarning for each op and source line that ``allow`` does not name. Returns their number.

    Raises:
        SampleMixingError: under ``strict``, naming all of them.
    """
    places: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        name = op_name(called_op(finding.node))
        if name not in options.allow:
            places.setdefault((name, source_line(finding.node)), finding)
    texts = {name: f"{describe(finding.node)}\n    {mixing_reason(finding)}" for (name, _), finding in places.items()}
    if places and options.strict:
        lines = "\n".join(f"{describe(finding.node)}\n    {mixing_reason(finding)}" for finding in places.values())
        raise SampleMixingError(
            f"these ops make a sample's value depend on other samples of the batch:\n{lines}\nRewrite them, or let them through with "
            f"options={{'allow': {tuple(sorted(texts))}}}."
        )
    for (name, _), finding in places.items():
        certainly = "makes" if finding.certain else "may make"
        warnings.warn(
            f"this op {certainly} a sample's value depend on other samples of the batch, whatever computes it:\n{describe(finding.node)}\n"
            f"    {mixing_reason(finding)}\nName it in options={{'allow': ({name!r},)}} to silence this warning.",
            SampleMixingWarning,
            stacklevel=3,
        )
    return len(places)
