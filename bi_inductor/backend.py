"""The backend: ``torch.compile(model, backend="batch_invariant")``.

One compile: options and pins, then Inductor's compile_fx with our decomposition table and with composite ops captured while AOTAutograd
traces; the post-grad pass classifies and rewrites each graph; lowerings call the templates.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from bi_inductor.errors import OptionError, UnsupportedVersionError, for_user
from bi_inductor.graph_breaks import warn_of_graph_break
from bi_inductor.native_bfloat16 import require_native_bfloat16
from bi_inductor.options import OPTION_NAMES, Options
from bi_inductor.pins import PINS, check_pins_in_force, config_patches
from bi_inductor.pointwise import FUNCTORCH_PINS, pinned_scalar_functions

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from bi_inductor.passes.post_grad import PostGradPass

# The releases of torch that this was tested with, one of each minor version that is accepted (setup.cfg has the same range).
TESTED_TORCH = ("2.13.0", "2.14.1", "2.15.0")

# What is captured and which op texts are written is per process: one compile of ours at a time. torch.compile holds a lock of its own
# around forward compiles, a backward can be compiled later and outside of it.
_compiling = threading.RLock()


def batch_invariant(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a graph so that a sample's result is the same bits whatever else is in the batch.

    Args:
        gm: the graph captured by Dynamo.
        example_inputs: its inputs; real or fake tensors and sizes.
        mode: a mode of torch.compile that times no kernels ("default", "reduce-overhead").
        options: options of ours (see ``bi_inductor.Options``) and of Inductor.

    Raises:
        UnsupportedOpError: an op may vary with the batch and has no template.
        OptionError: unknown or refused option or mode.
        UnsupportedVersionError: torch is not one of the versions the tests were run on.
        CompilerError: no C++ compiler.
    """
    with errors_for_users(sys._getframe()):
        return compile_graph(gm, example_inputs, mode=mode, options=options)


def compile_graph(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    inner_compile: Callable[..., Any] | None = None,
    cpu_backend: str = "cpp",
) -> Callable[..., Any]:
    """What ``batch_invariant`` does, its errors as they were raised.

    Args:
        gm, example_inputs, mode, options: as there.
        inner_compile: called for each forward and backward graph in the place of Inductor's ``compile_fx_inner``, with its arguments and
            with every pin in force; a report that generates no code gives one.
        cpu_backend: "triton" writes Triton for graphs on the CPU, which only Triton's interpreter runs: tests without a GPU.
    """
    check_torch_version(torch.__version__)
    own, patches = split_options(mode, options)
    if inner_compile is None:
        warn_of_graph_break(gm)
    compiled: Callable[..., Any] = compile_with(gm, example_inputs, own, patches, inner_compile, cpu_backend=cpu_backend)
    return compiled


def compile_with(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    own: Options,
    patches: dict[str, Any],
    inner_compile: Callable[..., Any] | None = None,
    packaged: bool = False,
    cpu_backend: str = "cpp",
) -> Any:
    """What ``compile_graph`` does once options are known.

    Args:
        gm, example_inputs, inner_compile, cpu_backend: as there.
        own: our options.
        patches: settings of Inductor, the pins among them.
        packaged: compile for AOTInductor, under Inductor's ``V.set_aot_compilation``.
    """
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    from bi_inductor.passes.decompositions import decomposition_table
    from bi_inductor.passes.flex_attention import warn_of_flex_attention
    from bi_inductor.passes.mixing import describe_inputs
    from bi_inductor.passes.post_grad import PostGradPass
    from bi_inductor.templates import register_lowerings

    if own.native_bfloat16:
        require_native_bfloat16(cpu_backend)
    register_lowerings()
    warn_of_flex_attention(gm, own)
    version = source_hash()
    patches["cpu_backend"] = cpu_backend
    exempt = {*(["cpp_wrapper"] if packaged else []), *(["cpu_backend"] if cpu_backend != PINS["cpu_backend"].value else [])}
    post_grad = PostGradPass(own, version, describe_inputs(gm, example_inputs, own.batch_dim), packaged)
    patches["post_grad_custom_pre_pass"] = post_grad
    if own.sample_gradients:
        from bi_inductor.passes.sample_gradients import SampleGradientPass

        require_joint_pass(patches)
        patches["joint_custom_pre_pass"] = SampleGradientPass.of(gm, version)

    compile_one: Callable[..., Any] = compile_fx_inner if inner_compile is None else inner_compile
    if inner_compile is None:
        from bi_inductor.reports.trace import is_wanted, traced

        if is_wanted(own):
            compile_one = traced(compile_fx_inner, gm, own)

    @functools.wraps(compile_fx_inner)
    def pinned_inner_compile(*args: Any, **kwargs: Any) -> Any:
        # A backward may be compiled at its first call, outside of batch_invariant().
        with errors_for_users(), _pinned():
            check_pins_in_force(exempt)
            if inner_compile is not None:
                return compile_one(*args, **kwargs)
            return warned_from_caches(compile_one, post_grad, *args, **kwargs)

    with _pinned(), caches_bypassed(bool(own.trace), patches):
        compiled: Callable[..., Any] = compile_fx(  # type: ignore[assignment]  # its other results are AOTInductor's
            gm,
            example_inputs,
            inner_compile=pinned_inner_compile,
            config_patches=patches,
            decompositions=decomposition_table(version),
        )
    return compiled


def warned_from_caches(compile_one: Callable[..., Any], post_grad: PostGradPass, gm: GraphModule, *args: Any, **kwargs: Any) -> Any:
    """Compiles ``gm``, and gives the warnings of ``post_grad`` also where Inductor's cache has the compiled graph and no pass runs.

    AOTAutograd's cache would be found before any of this is asked, so a graph with warnings is kept out of it: it saves no entry for a
    compiled graph whose ``_fx_graph_cache_key`` is None (torch._functorch._aot_autograd.graph_compile._should_save_cache, checked in
    2.13.0). A later process traces such a graph again and finds the compiled code in Inductor's cache.
    """
    runs = post_grad.runs
    compiled = compile_one(gm, *args, **kwargs)
    if post_grad.runs == runs:
        post_grad.repeat_warnings(gm)
    if post_grad.warned:
        compiled._fx_graph_cache_key = None
    return compiled


def require_joint_pass(patches: dict[str, Any]) -> None:
    """Raises OptionError where an option of Inductor leaves no place for the pass that ``sample_gradients`` needs."""
    for name, wanted in (("joint_custom_pre_pass", None), ("use_joint_graph_passes", True)):
        if patches.get(name, wanted) != wanted:
            raise OptionError(f"option {name!r} cannot be set beside 'sample_gradients', which runs a pass there. Leave one of them out.")


@contextlib.contextmanager
def errors_for_users(caller: FrameType | None = None) -> Iterator[None]:
    """Errors of ours reach the caller of the compiled function as they are; Dynamo drops the frames above ``caller`` from the traceback."""
    try:
        yield
    except Exception as error:
        import torch._dynamo

        known = for_user(error, caller)
        # TORCHDYNAMO_VERBOSE=1: the whole chain, for whoever debugs the compiler.
        if known is None or torch._dynamo.config.verbose:
            raise
    else:
        return
    raise known


@contextlib.contextmanager
def caches_bypassed(bypassed: bool, patches: dict[str, Any]) -> Iterator[None]:
    """Compiled graphs are neither looked up nor kept, so that every pass runs; libraries of kernels are used as ever.

    What has to hold also where a backward is compiled later goes into ``patches``, the settings of compile_fx.
    """
    from torch._functorch import config as functorch_config

    if not bypassed:
        yield
        return
    patches.update(fx_graph_cache=False, fx_graph_remote_cache=False)
    with functorch_config.patch(enable_autograd_cache=False, enable_remote_autograd_cache=False):
        yield


@contextlib.contextmanager
def _pinned() -> Iterator[None]:
    """What holds while a graph is traced, lowered and written, forward or backward."""
    from torch._functorch import config as functorch_config

    from bi_inductor.passes.capture import captured_ops

    functorch_pins = {name: value for name, (value, _) in FUNCTORCH_PINS.items()}
    with _compiling, captured_ops(), pinned_scalar_functions(), functorch_config.patch(functorch_pins):
        yield


def split_options(mode: str | None, options: dict[str, Any] | None) -> tuple[Options, dict[str, Any]]:
    """Our options, and the pins with Inductor's options on top.

    Raises:
        OptionError: an unknown mode or option, or one that would undo a pin.
    """
    options = dict(options or {})
    own = {name: options.pop(name) for name in OPTION_NAMES if name in options}
    inductor: dict[str, Any] = {}
    if mode is not None and mode != "default":
        from torch._inductor import list_mode_options

        modes = list_mode_options()
        if mode not in modes:
            raise OptionError(f"unknown mode {mode!r}; allowed: {', '.join(sorted(modes))}")
        inductor.update(modes[mode])
    return Options.from_environment().updated(own), config_patches({**inductor, **options})


def check_torch_version(version: str) -> None:
    """Raises UnsupportedVersionError unless the test suite was run with a release of this minor version of torch.

    Other patch releases of a minor version are accepted. Its previews are not ("2.14.0.dev20260101", "2.14.0a0+git1a2b3c", "2.14.0rc1"):
    their internals are those of some day before the release.
    """
    release = re.fullmatch(r"(\d+\.\d+)\.\d+(\+[\w.]+)?", version)
    minor_versions = [tested.rpartition(".")[0] for tested in TESTED_TORCH]
    if release is None or release[1] not in minor_versions:
        raise UnsupportedVersionError(
            f"backend 'batch_invariant' takes releases of torch {', '.join(minor_versions)} (tested with {', '.join(TESTED_TORCH)}); "
            f"this is {version}. Install one of those: Inductor's internals change between versions, and an untested one could vary "
            "without a sign."
        )


@functools.cache
def source_hash() -> str:
    """Hash of every source file of this package: part of every cache key, so an edited pass, template or table is a cache miss."""
    from bi_inductor import passes, templates
    from bi_inductor.templates.library import read_source

    digest = hashlib.sha256()
    folders = [Path(__file__).parent, Path(str(passes.__file__)).parent, Path(str(templates.__file__)).parent]
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".h", ".jinja"):
                digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + read_source(path.resolve()).encode() + b"\0")
    return digest.hexdigest()
