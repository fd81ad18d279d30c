"""Packages of AOTInductor: an exported program compiled ahead of time to code that needs neither Python nor a compiler.

The package has the bits that ``torch.compile(..., backend="batch_invariant")`` gives. Kernels are part of its source: no library of ours
has to be there when it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import torch

from bi_inductor.backend import check_torch_version, compile_with, errors_for_users, split_options
from bi_inductor.errors import OptionError

# Settings of Inductor that this fills or that would compute parts of the graph with other kernels.
REFUSED = {
    "aot_inductor.output_path": "the argument package_path names the file",
    "aot_inductor.use_runtime_constant_folding": "it computes parts of the graph by themselves when the package is loaded",
    "fx_wrapper": "a package holds C++",
}


def aoti_compile_and_package(
    exported: torch.export.ExportedProgram,
    *,
    package_path: str | os.PathLike[str],
    options: Mapping[str, Any] | None = None,
) -> str:
    """Compiles an exported program into a batch-invariant package, as ``torch._inductor.aoti_compile_and_package`` does into one of torch.

    Load it with ``torch._inductor.aoti_load_package``. Mark the batch dim dynamic when exporting
    (``dynamic_shapes={"x": {0: torch.export.Dim("batch")}}``); one package then serves every batch.

    Args:
        exported: with its example inputs.
        package_path: ends in ".pt2".
        options: as for the backend. The number of threads is that of the process that runs the package, unless
            ``"cpp.dynamic_threads": False`` fixes today's.

    Returns:
        ``package_path``.

    Raises:
        TypeError, ValueError: ``exported`` is no exported program or has no example inputs, or the path is not one of a package.
        OptionError: an option that is unknown or refused.
        UnsupportedOpError: an op that may vary, or one that runs one sample at a time and needs Python for it.
    """
    if not isinstance(exported, torch.export.ExportedProgram):
        raise TypeError(f"exported: expected a program that torch.export.export gives; got {type(exported).__name__}")
    if exported.example_inputs is None:
        raise ValueError("exported: the program has no example inputs, which AOTInductor needs")
    path = os.fspath(package_path)
    if not path.endswith(".pt2"):
        raise ValueError(f"package_path: a package ends in .pt2; got {path!r}")
    check_torch_version(torch.__version__)
    given = dict(options or {})
    for name, reason in REFUSED.items():
        if given.get(name):
            raise OptionError(f"option {name!r} cannot be set for a package: {reason}. Leave it out.")
    own, patches = split_options(None, {"cpp.dynamic_threads": True, **given})
    if own.trace:
        raise OptionError("option 'trace' is for torch.compile: compiling a package writes no trace. Leave it out.")
    with errors_for_users(sys._getframe()):
        files = _compile(exported, own, patches)
    from torch._inductor.package.package import package_aoti

    package_aoti(path, files)
    return path


def _compile(exported: torch.export.ExportedProgram, own: Any, patches: dict[str, Any]) -> Any:
    # As torch._inductor.aot_compile and compile_fx_aot do, which take no decompositions. Inductor internals, checked in torch 2.13.0:
    # V.set_aot_compilation, _aoti_flatten_inputs, CompiledAOTI.filename, the argument extern_node_serializer of compile_fx_inner,
    # settings cpp_wrapper, aot_inductor.package and aot_inductor.output_path; torch._export.utils._compiling_state_context;
    # the module _guards_fn that an exported program may carry.
    from torch._export.utils import _compiling_state_context
    from torch._inductor.codecache import code_hash
    from torch._inductor.compile_fx import _aoti_flatten_inputs
    from torch._inductor.virtualized import V

    gm = exported.module(check_guards=False)
    assert isinstance(gm, torch.fx.GraphModule)
    assert exported.example_inputs is not None
    args, kwargs = exported.example_inputs
    inputs, patches = _aoti_flatten_inputs(gm, args, kwargs, options=patches)
    patches.update({"cpp_wrapper": True, "aot_inductor.package": True, "aot_inductor.output_path": code_hash(gm.code)})
    with _compiling_state_context(), V.set_aot_compilation(True):
        return compile_with(gm, inputs, own, patches, packaged=True).filename
