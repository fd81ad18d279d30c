"""Our own options: one dataclass, each field also an environment variable of the same name (``BI_INDUCTOR_STRICT=1``)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from bi_inductor.errors import OptionError

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the backend.

    Attributes:
        strict: a custom op whose numerics are unknown, or an op that mixes samples, is an error instead of a warning.
        allow: names of ops ("aten.geqrf", "mylib.op") that pass: unsupported ones as they are and without an error, custom ones, those
            that run one sample at a time and "flex_attention" without a warning.
        batch_dim: the dim of the inputs that holds the samples: one number for all, or a mapping from names of arguments to dims (None: an
            input that all samples share), whose other arguments are found as with None. None: the dynamic dim, else dim 0 (docs/mixing.md).
        trace: a folder into which every compile writes its graphs, their differences, the generated code and a report, each into a
            folder of its own; "" for none. Caches of compiled graphs are then not used: a cached compile has nothing to write.
        sample_gradients: the gradient of a parameter is the sum, in a fixed tree, of its gradients for each sample alone: with a
            ``GradientAccumulator`` a batch has the same gradients whole or in micro-batches. The batch dim must be dynamic.
        native_bfloat16: matmuls of bfloat16 on a CPU take its own products of bfloat16 (AVX512-BF16), in one order for every batch. The
            bits are then those of CPUs with that instruction, no longer those of every CPU (docs/numerics.md section 3).
    """

    strict: bool = False
    allow: tuple[str, ...] = ()
    trace: str = ""
    batch_dim: int | tuple[tuple[str, int | None], ...] | None = None
    sample_gradients: bool = False
    native_bfloat16: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Options:
        """Options from ``BI_INDUCTOR_*``; names in ``BI_INDUCTOR_ALLOW`` are separated by commas, ``BI_INDUCTOR_BATCH_DIM`` is ``1`` or
        ``x=1,table=none``.

        Raises:
            OptionError: an unknown variable of that prefix, or a value that is not a boolean.
        """
        environment = os.environ if environment is None else environment
        fields = {f"BI_INDUCTOR_{field.name.upper()}": field.name for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for variable, text in environment.items():
            if not variable.startswith("BI_INDUCTOR_"):
                continue
            if variable not in fields:
                raise OptionError(f"unknown environment variable {variable}; allowed: {', '.join(sorted(fields))}")
            values[fields[variable]] = _parse(variable, fields[variable], text)
        return cls(**values)

    def updated(self, values: Mapping[str, Any]) -> Options:
        """These options with ``values`` on top. Raises OptionError for a value of the wrong type."""
        for name, value in values.items():
            if name in ("strict", "sample_gradients", "native_bfloat16") and not isinstance(value, bool):
                raise OptionError(f"option {name!r} must be True or False; given {value!r}")
            if name == "allow" and not _is_sequence_of_names(value):
                raise OptionError(f"option 'allow' must be a sequence of op names such as ('aten.convolution',); given {value!r}")
            if name == "trace" and not isinstance(value, (str, os.PathLike)):
                raise OptionError(f"option 'trace' must be the path of a folder; given {value!r}")
            if name == "batch_dim" and not _is_batch_dim(value):
                raise OptionError(
                    f"option 'batch_dim' must be a dim, None, or a mapping such as {{'x': 1, 'table': None}}; given {value!r}"
                )
        convert: dict[str, Callable[[Any], Any]] = {
            "allow": lambda names: tuple(sorted(names)),
            "trace": os.fspath,
            "batch_dim": lambda dims: tuple(sorted(dims.items())) if isinstance(dims, Mapping) else dims,
        }
        checked: dict[str, Any] = {name: convert.get(name, lambda value: value)(value) for name, value in values.items()}
        return dataclasses.replace(self, **checked)


def _is_sequence_of_names(value: Any) -> bool:
    return isinstance(value, (Sequence, Set)) and not isinstance(value, str) and all(isinstance(item, str) for item in value)


def _is_batch_dim(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and _is_dim(dim) for name, dim in value.items())
    return _is_dim(value)


def _is_dim(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def _parse(variable: str, field: str, text: str) -> Any:
    if field == "allow":
        return tuple(sorted(name.strip() for name in text.split(",") if name.strip()))
    if field == "trace":
        return text
    if field == "batch_dim":
        return _parse_batch_dim(variable, text)
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise OptionError(f"environment variable {variable} must be one of {', '.join(_TRUE + _FALSE[:-1])}; given {text!r}")


def _parse_batch_dim(variable: str, text: str) -> Any:
    try:
        if "=" not in text:
            return _parse_dim(text)
        pairs = (part.split("=") for part in text.split(",") if part.strip())
        return tuple(sorted((name.strip(), _parse_dim(dim)) for name, dim in pairs))
    except ValueError:
        raise OptionError(f"environment variable {variable} must be a dim or name=dim,name=none; given {text!r}") from None


def _parse_dim(text: str) -> int | None:
    return None if text.strip().lower() in ("", "none") else int(text)


OPTION_NAMES = tuple(field.name for field in dataclasses.fields(Options))
