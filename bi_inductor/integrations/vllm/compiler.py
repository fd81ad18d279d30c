"""The backend as a compiler of vLLM's own (``CompilerInterface``), for mode 3, where pieces of a model between attention ops are compiled.

vLLM compiles a piece for ranges of sizes and for single ones that it replays as CUDA graphs. Ours gives all of them the same bits, since
no size has a part in a result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule
from vllm.compilation.compiler_interface import CompilerInterface
from vllm.config.utils import Range

from bi_inductor.backend import compile_graph, errors_for_users, source_hash
from bi_inductor.errors import OptionError


class InvariantCompiler(CompilerInterface):
    """Named by a platform's ``get_compile_backend`` (checked in vLLM 0.32.0).

    Nothing is loaded from vLLM's own folder of compiled pieces: a second start finds them in Inductor's cache, whose keys know our passes.
    """

    name = "batch_invariant"

    def compute_hash(self, vllm_config: Any) -> str:
        """Part of the key of vLLM's caches: of our sources."""
        return source_hash()[:10]

    def compile(
        self,
        graph: GraphModule,
        example_inputs: list[Any],
        compiler_config: dict[str, Any],
        compile_range: Range,
        key: str | None = None,
    ) -> tuple[Callable[..., Any] | None, Any | None]:
        """A piece for the sizes of a range, and no handle to load it by.

        Args:
            graph: not changed; called with ``example_inputs``, fake ones of a symbolic size or, where the range is one size, of that.
            compiler_config: settings of Inductor.

        Raises:
            OptionError: a setting that would undo what keeps bits, or passes of vLLM over the graph, which put kernels of its own there.
            UnsupportedOpError: an op whose bits may follow the batch.
        """
        settings = dict(compiler_config or {})
        for name in [name for name in settings if name.endswith("_pass") and settings[name] is not None]:
            raise OptionError(f"{name}: passes of vLLM put its own kernels into the graph; switch them off in pass_config")
        with errors_for_users():
            return compile_graph(copy.deepcopy(graph), example_inputs, options=settings), None
