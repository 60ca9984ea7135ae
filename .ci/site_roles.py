"""Docstrings of the code as Markdown: roles such as ``:class:`` become links, for mkdocstrings."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`~?\.?([\w.]+)`")


class Roles(griffe.Extension):
    """Shows the last part of each name; where the name is on a page, it leads there."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(_linked, obj.docstring.value)


def _linked(role: re.Match[str]) -> str:
    name = role[1].rpartition(".")[2]
    return f"<autoref identifier='{role[1]}' optional><code>{name}</code></autoref>"
