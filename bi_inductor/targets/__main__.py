"""The process that compiles for a target: ``python -m bi_inductor.targets TARGET RESULT PROGRAM...``, started by ``compile_programs``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bi_inductor.errors import BatchInvariantError
from bi_inductor.programs import Program, load_program
from bi_inductor.targets.description import Target, target_named
from bi_inductor.targets.device import ROCM, described_device, load_device_guard
from bi_inductor.targets.report import TargetReport


def main() -> None:
    """Writes as JSON what each program was compiled to, or its error."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("result")
    parser.add_argument("programs", nargs="+")
    parser.add_argument("--dynamic", action="store_true")
    given = parser.parse_args()
    target = target_named(given.target)
    if target.backend == "hip":
        torch.version.hip = ROCM
    from bi_inductor.backend import errors_for_users

    found = []
    for name in given.programs:
        try:
            # Before there is a described device: making a model may seed the generators of the devices that are there.
            program = load_program(name)
            with errors_for_users():
                load_device_guard()
            with described_device(target):
                found.append(report(program, target, given.dynamic).json())
        except Exception as error:
            found.append({"error": _kind(error), "text": str(error.args[0] if error.args else error)})
    Path(given.result).write_text(json.dumps(found), encoding="utf-8")


def _kind(error: Exception) -> str:
    """The class that the parent raises."""
    if isinstance(error, BatchInvariantError):
        # Dynamo is given a subclass of ours that it lets pass.
        return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "bi_inductor.errors")
    return "ValueError" if isinstance(error, ValueError) else "RuntimeError"


def report(program: Program, target: Target, dynamic: bool) -> TargetReport:
    """Compiles one program inside ``described_device``."""
    from bi_inductor.targets.kernels import build, gathered

    args, kwargs = program.arguments
    with gathered() as written:
        run(program.model, args, kwargs, dynamic)
    kernels = [build(kernel, source, written.calls(kernel), target) for kernel, source in written.kernels.items()]
    return TargetReport(program.name, target, tuple(kernels), tuple(written.other_calls()))


def run(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: bool) -> None:
    """Calls the compiled model once on fake tensors; its graphs are written and then run uncompiled."""
    from torch._functorch import config as functorch_config
    from torch._inductor import config as inductor_config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from bi_inductor.backend import compile_graph, errors_for_users
    from bi_inductor.targets.model import on_described_device

    def written(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **settings: Any) -> Callable[..., Any]:
        compile_fx_inner(gm, example_inputs, **settings)

        def uncompiled(inputs: list[Any]) -> Any:
            given = list(inputs)
            inputs.clear()
            return gm.forward(*given)

        uncompiled._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark
        return uncompiled

    torch._dynamo.reset()
    mode = FakeTensorMode(shape_env=ShapeEnv())
    args, kwargs = on_described_device(model, (args, kwargs), mode)

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        # Inductor notes the bytes and operations of a kernel where it may be timed.
        with errors_for_users():
            return compile_graph(gm, example_inputs, options={"benchmark_kernel": True}, inner_compile=written)

    with (
        mode,
        torch.no_grad(),
        functorch_config.patch(enable_autograd_cache=False),
        # A cached graph would not be written.
        inductor_config.patch(force_disable_caches=True),
    ):
        torch.compile(model, backend=backend, dynamic=True if dynamic else None)(*args, **kwargs)


if __name__ == "__main__":
    main()
