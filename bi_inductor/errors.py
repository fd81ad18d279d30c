"""Errors and warnings of bi_inductor: all carry what was met, where in the user's source, and the way out."""

from __future__ import annotations


class BatchInvariantError(RuntimeError):
    """Base of the errors raised by bi_inductor."""


class UnsupportedOpError(BatchInvariantError):
    """The graph holds an op that may vary with the batch and for which there is no template."""


class UnsupportedVersionError(BatchInvariantError):
    """This version of torch was not run with the test suite."""


class CompilerError(BatchInvariantError):
    """The C++ compiler is missing or failed."""


class OptionError(ValueError):
    """An option is unknown, has a bad value, or would undo a pin."""


class SampleMixingError(BatchInvariantError):
    """An op mixes samples by its meaning, and ``strict`` is on."""


class OpaqueOpError(BatchInvariantError):
    """A custom op's numerics are unknown, and ``strict`` is on."""


class SampleMixingWarning(UserWarning):
    """An op mixes samples by its meaning: no kernel can make its result independent of the batch."""


class OpaqueOpWarning(UserWarning):
    """A custom op's numerics are unknown: bi_inductor calls it as it is."""
