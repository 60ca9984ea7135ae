"""What mkdocs leaves out: pages that stand elsewhere in the repository, and the reference.

README.md, CONTRIBUTING.md and deploy/'s pages become ``project/…``; links follow, and what leads to
a file that is no page (a test, a module) is its name.  The reference has a page for each package,
with all that it names in ``__all__``.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
_BESIDE = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
    *("deploy/README.md", "deploy/platforms.md"),
)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s:]*)\)")
_ROLE = re.compile(r":\w+:`~?([\w.]+)`")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_PACKAGES = {
    "flowctl": "flowctl",
    "pyspark_flowctl": "adapters/pyspark_flowctl",
    "flowctl_airflow": "adapters/flowctl_airflow",
    "flowctl_apply": "adapters/flowctl_apply",
    "flowctl_aws": "adapters/flowctl_aws",
    "flowctl_files": "adapters/flowctl_files",
    "flowctl_http": "adapters/flowctl_http",
    "flowctl_kafka": "adapters/flowctl_kafka",
    "flowctl_redis": "adapters/flowctl_redis",
    "flowctl_sql": "adapters/flowctl_sql",
    "flowctl_storm": "adapters/flowctl_storm",
}


def on_config(config: Any) -> Any:
    """Put the pages of the reference into the menu."""
    (reference,) = (entry for entry in config.nav if "Reference" in entry)
    reference["Reference"] = [f"reference/{package}.md" for package in _PACKAGES]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that don't stand in docs/."""
    for name in _BESIDE:
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, f"project/{name}", content=text))
    for package, place in _PACKAGES.items():
        text = "".join(_reference(package, ROOT / place / "__init__.py"))
        files.append(File.generated(config, f"reference/{package}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Let links lead where their pages stand on the site."""
    here = page.file.src_uri

    def moved(link: re.Match[str]) -> str:
        image, text, target = link.groups()
        path, hash_, anchor = target.partition("#")
        if not path:
            return link[0]
        real = posixpath.normpath(posixpath.join(posixpath.dirname(_real(here)), path))
        there = _on_site(real)
        if files.get_file_from_path(there) is None:
            return link[0] if there.endswith(".md") else text
        start = posixpath.dirname(here) or "."
        return f"{image}[{text}]({posixpath.relpath(there, start)}{hash_}{anchor})"

    parts = re.split(f"({_FENCE.pattern})", markdown, flags=_FENCE.flags)
    return "".join(part if n % 2 else _LINK.sub(moved, part) for n, part in enumerate(parts))


def _real(page: str) -> str:
    """Where a page of the site stands in the repository."""
    return page.removeprefix("project/") if page.startswith("project/") else f"docs/{page}"


def _on_site(path: str) -> str:
    return path.removeprefix("docs/") if path.startswith("docs/") else f"project/{path}"


def _reference(package: str, init: Path) -> Iterator[str]:
    """A heading, and an entry for each public name in the order of ``__all__``."""
    module = ast.parse(init.read_text(encoding="utf-8"))
    said = _ROLE.sub(r"`\1`", ast.get_docstring(module) or "")
    yield f"# {package}\n\n{said}\n"
    for statement in module.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            for name in ast.literal_eval(statement.value):
                if not name.startswith("_"):
                    yield f"\n::: {package}.{name}\n"
