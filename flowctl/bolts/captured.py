"""The objects that a function takes along when it is pickled: arguments, attributes and
variables.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any


def parts_of(process: Any) -> Mapping[str, Any]:
    """Return the objects that ``process`` takes along, by the name that its author knows.

    Its variables are the globals and the variables of enclosing functions that its code names, also
    in inner functions.
    """
    process = getattr(process, "__wrapped__", process)  # what only carries a job's own code
    parts: dict[str, Any] = {}
    while isinstance(process, functools.partial):
        parts |= {f"argument {index}": value for index, value in enumerate(process.args)}
        parts |= {f"argument {name!r}": value for name, value in process.keywords.items()}
        process = process.func
    owner = getattr(process, "__self__", process)
    parts |= {f"attribute {name!r}": v for name, v in getattr(owner, "__dict__", {}).items()}
    function = getattr(process, "__func__", process)
    if not inspect.isfunction(function):
        function = inspect.getattr_static(type(process), "__call__", None)
    if isinstance(function, FunctionType):
        parts |= {f"variable {name!r}": value for name, value in variables_of(function).items()}
    return parts


def variables_of(function: FunctionType) -> Mapping[str, Any]:
    """Return the globals and the variables of enclosing functions that ``function`` names."""
    names = {
        step.argval
        for code in codes_in(function.__code__)
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")  # co_names has attributes too
    }
    found = {name: function.__globals__[name] for name in names & function.__globals__.keys()}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            found[name] = cell.cell_contents
        except ValueError:  # the variable has no value yet
            continue
    return found


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Return ``code`` and the code of its inner functions."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from codes_in(inner)


@functools.lru_cache(maxsize=1024)  # .1 ms, and there may be many objects of one class
def is_installed(module: ModuleType) -> bool:
    """Whether ``module`` belongs to Python, flowctl or a package, and not to the user's project."""
    top = module.__name__.partition(".")[0]
    if top in ("flowctl", "pyspark_flowctl") or top.startswith("flowctl_"):
        return True  # workers must have flowctl in any case
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__ != "__main__"  # built in
    places = sysconfig.get_paths()
    known = {places[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    parts = Path(file).parts
    return "site-packages" in parts or "dist-packages" in parts or file.startswith(tuple(known))
