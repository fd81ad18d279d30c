"""``bi_inductor.explain``: what a compile with backend "batch_invariant" does to a model, without compiling it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from bi_inductor.errors import missing_device_named

if TYPE_CHECKING:
    from bi_inductor.reports.explanation import Explanation


def explain(
    model: Callable[..., Any],
    *inputs: Any,
    target: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    backend: str = "batch_invariant",
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> Explanation:
    """Says what ``torch.compile(model, backend="batch_invariant")`` makes of a call: every node's class and why it has it, what is
    rewritten into what, kernels with their numerics, what is opaque or refused, graph breaks, and the pins in force.

    The model runs once, uncompiled, on copies of the inputs; no C++ compiler is needed. Ops that a compile refuses are reported, not
    raised. Graphs are those of the current grad mode: under ``torch.no_grad()`` inference, otherwise forward and backward.

    Args:
        model: a module or function.
        inputs: its positional arguments.
        target: None or "cpu"; or a GPU, "sm_80", "sm_90", "sm_100" or "gfx942", which need not be there: then kernels have their pinned
            configuration on it, and calls without a Triton template are refused. Model and inputs stay on the CPU, where the graphs are
            captured. (What Triton makes of the kernels, their registers and memory, says ``bi_inductor.targets.compile_program``.)
        kwargs: its keyword arguments.
        backend: "batch_invariant", or "inductor" to see the graphs of stock (without classes).
        dynamic, options: as torch.compile takes them.

    Returns:
        an ``Explanation``: ``text()``, ``json()``, ``html(path)``, ``graph_diff(stage)``.

    Raises:
        ValueError: another ``target`` or ``backend``, or a tensor that is not on the CPU.
        TypeError: ``model`` cannot be called.
        DeviceError: the model uses a GPU that is not there.
        OptionError, UnsupportedVersionError: as a compile would.

    What Dynamo compiled before is dropped (``torch._dynamo.reset``). The random state and the module's buffers are left as found.
    """
    from bi_inductor.reports.capture import capture
    from bi_inductor.reports.explanation import Explanation
    from bi_inductor.reports.triton_kernels import check_target, refused_on

    target = check_target(target)
    if target != "cpu" and backend != "batch_invariant":
        raise ValueError(f"target: got {target!r} with backend {backend!r}; only kernels of 'batch_invariant' are known for GPUs")
    if not callable(model):
        raise TypeError(f"model: got {type(model).__name__}; allowed are a module and a function")
    require_cpu(model, inputs, kwargs or {})
    with missing_device_named():
        captured = capture(model, inputs, kwargs, backend=backend, dynamic=dynamic, options=options)
    name = getattr(model, "__qualname__", type(model).__name__)
    graphs = captured.graphs if target == "cpu" else [refused_on(target, graph) for graph in captured.graphs]
    return Explanation(name, backend, str(torch.__version__), tuple(graphs), tuple(captured.breaks), target)


def require_cpu(model: Any, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises ValueError naming the first tensor of the model or of its inputs that is not on the CPU."""
    import torch.utils._pytree as pytree

    tensors: list[tuple[str, torch.Tensor]] = []
    if isinstance(model, torch.nn.Module):
        tensors += [(f"parameter {name!r}", parameter) for name, parameter in model.named_parameters()]
        tensors += [(f"buffer {name!r}", buffer) for name, buffer in model.named_buffers()]
    leaves = pytree.tree_flatten_with_path((inputs, dict(kwargs)))[0]
    tensors += [(f"input {pytree.keystr(path[1:])}", leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]
    for name, tensor in tensors:
        if tensor.device.type != "cpu":
            raise ValueError(
                f"{name} is on device {tensor.device}, and graphs are captured on the CPU; move model and inputs there: .cpu() (and name a "
                "GPU by target=)"
            )
