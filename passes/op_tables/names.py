"""How the files of the table write their names."""

from __future__ import annotations


def names(namespace: str, text: str) -> set[str]:
    """ "namespace.op" for every word of ``text``."""
    return {f"{namespace}.{name}" for name in text.split()}
