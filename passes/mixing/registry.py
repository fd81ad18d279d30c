"""The table of rules: for each op by name, what it does to the samples of its operands."""

from __future__ import annotations

from collections.abc import Callable

from bi_inductor.passes.mixing.call import Call
from bi_inductor.passes.mixing.states import States

Rule = Callable[[Call], States]
RULES: dict[str, Rule] = {}


def rule(names: str, namespace: str = "aten") -> Callable[[Rule], Rule]:
    """Registers a rule for ops of one namespace, by their names separated by spaces."""

    def register(found: Rule) -> Rule:
        for name in names.split():
            RULES[f"{namespace}.{name}"] = found
        return found

    return register
