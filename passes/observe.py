"""Lets a report watch the post-grad pass: the graph between its steps, the class of each node, what replaced what.

Observers hold for the context they were set in (a thread, an asyncio task), so a report on one compile sees no other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

from torch.fx import Graph, Node

if TYPE_CHECKING:
    from bi_inductor.passes.op_classes import OpClass


class Observer:
    """What the post-grad pass tells; a report overrides what it wants to know. Graphs and nodes are only to be read.

    Attributes:
        tolerant: the pass goes on where it would raise for an op that it does not support.
    """

    tolerant = False

    def stage(self, name: str, graph: Graph) -> None:
        """``graph`` before the pass ("captured") and after each of its steps, named by the step."""

    def mixing(self, reasons: Mapping[Node, str]) -> None:
        """The nodes of the captured graph that mix samples, each with what it does; told before the classes."""

    def classified(self, classes: Mapping[Node, OpClass]) -> None:
        """The class of every call of the captured graph."""

    def replaced(self, node: Node, replacement: Sequence[Node]) -> None:
        """The rule of ``node`` wrote ``replacement``, the nodes in order; ``node`` is erased afterwards."""

    def refused(self, nodes: Sequence[Node]) -> None:
        """Nodes for which the pass raises after this, or would if no observer were tolerant."""


_observers: ContextVar[tuple[Observer, ...]] = ContextVar("bi_inductor_observers", default=())


@contextlib.contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """Graphs compiled inside are shown to ``observer``, beside those that watch already."""
    token = _observers.set((*_observers.get(), observer))
    try:
        yield
    finally:
        _observers.reset(token)


class Announcer(Observer):
    """Passes everything on to the observers in force."""

    def __init__(self) -> None:
        self.observers = _observers.get()
        self.tolerant = any(observer.tolerant for observer in self.observers)

    def stage(self, name: str, graph: Graph) -> None:
        for observer in self.observers:
            observer.stage(name, graph)

    def mixing(self, reasons: Mapping[Node, str]) -> None:
        for observer in self.observers:
            observer.mixing(reasons)

    def classified(self, classes: Mapping[Node, OpClass]) -> None:
        for observer in self.observers:
            observer.classified(classes)

    def replaced(self, node: Node, replacement: Sequence[Node]) -> None:
        for observer in self.observers:
            observer.replaced(node, replacement)

    def refused(self, nodes: Sequence[Node]) -> None:
        for observer in self.observers:
            observer.refused(nodes)
