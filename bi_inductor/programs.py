"""What the command line works on: ``module:callable``, ``file.py:callable`` or a saved ``torch.export`` program (``.pt2``)."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch


class ProgramError(ValueError):
    """A program cannot be loaded: one sentence with what to do."""


class Program(NamedTuple):
    """A model and its inputs.

    Attributes:
        name: as the user wrote it.
        model: what is called.
        inputs: a tensor, a tuple or list of positional arguments, or a dict of keyword arguments.
    """

    name: str
    model: Callable[..., Any]
    inputs: Any

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of a call."""
        if isinstance(self.inputs, dict):
            return (), self.inputs
        return (tuple(self.inputs) if isinstance(self.inputs, (tuple, list)) else (self.inputs,)), {}


def load_program(name: str) -> Program:
    """Loads a program.

    Args:
        name: "module:callable" or "file.py:callable", the callable taking nothing and returning ``(model, inputs)``; or the path of a
            program saved by ``torch.export.save``, whose example inputs are then the inputs.

    Raises:
        ProgramError: there is no such file, module or callable, or it raised, returned something else or needs a device that is not there.
    """
    if name.endswith(".pt2"):
        return _load_saved(name)
    function = load_function(name, "a function that returns (model, inputs)")
    try:
        result = function()
    except Exception as error:
        raise ProgramError(_cause(f"program {name!r} raised", error)) from error
    if not isinstance(result, tuple) or len(result) != 2 or not callable(result[0]):
        raise ProgramError(f"program {name!r} returned {_kind(result)}; it must return a tuple (model, inputs), the model a callable")
    return Program(name, *result)


def load_function(name: str, what: str = "a function") -> Callable[..., Any]:
    """The function that ``module:callable`` or ``file.py:callable`` names. Raises ProgramError when there is none, or no ``what``."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise ProgramError(f"program {name!r} must be module:callable, file.py:callable or the path of a saved program ending in .pt2")
    function = _import(name, module_name)
    for part in attribute.split("."):
        if not hasattr(function, part):
            raise ProgramError(f"program {name!r}: {module_name} has no {attribute!r}")
        function = getattr(function, part)
    if not callable(function):
        raise ProgramError(f"program {name!r} is of type {type(function).__name__}; it must be {what}")
    found: Callable[..., Any] = function
    return found


def _kind(result: Any) -> str:
    if isinstance(result, tuple):
        return f"a tuple of ({', '.join(type(item).__name__ for item in result)})"
    return f"something of type {type(result).__name__}"


def _import(name: str, module_name: str) -> Any:
    try:
        if not module_name.endswith(".py"):
            # As `python -m` does: a module beside the user is found.
            if os.getcwd() not in sys.path:
                sys.path.insert(0, os.getcwd())
            return importlib.import_module(module_name)
        path = Path(module_name)
        if not path.is_file():
            raise ProgramError(f"program {name!r}: there is no file {module_name}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Dynamo looks globals of a function up in the module of that name.
        sys.modules.setdefault(path.stem, module)
        spec.loader.exec_module(module)
        return module
    except ProgramError:
        raise
    except Exception as error:
        raise ProgramError(_cause(f"program {name!r} cannot be imported", error)) from error


def _load_saved(name: str) -> Program:
    if not Path(name).is_file():
        raise ProgramError(f"program {name!r}: there is no such file")
    try:
        program = torch.export.load(name)
        model = program.module()
    except Exception as error:
        raise ProgramError(_cause(f"program {name!r} cannot be loaded by torch.export.load", error)) from error
    if not program.example_inputs:
        raise ProgramError(f"program {name!r} was saved without example inputs; give a module:callable that loads it and makes inputs")
    args, kwargs = program.example_inputs
    if args and kwargs:
        raise ProgramError(f"program {name!r} takes positional and keyword arguments; export it with one kind, or give a module:callable")
    return Program(name, model, kwargs or args)


def _cause(what: str, error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    if any(word in str(error) for word in ("CUDA", "NVIDIA", "cuda", "HIP")) and not torch.cuda.is_available():
        return (
            f"{what} {text}. This machine has no GPU: build or load the model on the CPU (.cpu(), map_location='cpu') or go to one that has"
        )
    return f"{what} {text}"
