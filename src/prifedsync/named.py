"""A user's function by its name: "package.module:function" or "folder/file.py:function"."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from .values import BadValue

FORM = 'write "module:function" or "folder/file.py:function"'


def function(field: str, name: str) -> Callable[..., Any]:
    """The function of that name. Its module is imported; the current folder is searched too."""
    where, colon, attribute = name.rpartition(":")
    if not (colon and where and attribute.isidentifier()):
        raise BadValue(field, repr(name), "does not name a function", FORM)
    module = _file(field, name, Path(where)) if where.endswith(".py") else _module(field, name, where)
    named = getattr(module, attribute, None)
    if not callable(named):
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        rule = f"must be a function: there is no {attribute} to call in {where}"
        remedy = f"it has {', '.join(own[:8])}" if own else "define it there"
        raise BadValue(field, repr(name), rule, remedy)
    return named  # type: ignore[no-any-return]  # any callable will do


def call(field: str, name: str, *arguments: object) -> Any:
    """The return value of the function. It is called with the arguments if it takes them, otherwise with none."""
    called = function(field, name)
    if not _takes(called, arguments):
        if not _takes(called, ()):
            plural = "" if len(arguments) == 1 else "s"
            rule = f"must take {len(arguments)} argument{plural} or none"
            raise BadValue(field, repr(name), rule, "give its other arguments default values")
        arguments = ()
    try:
        return called(*arguments)
    except BadValue:
        raise
    except Exception as error:
        remedy = "call it on its own to see the traceback"
        raise BadValue(field, repr(name), f"raised {one_line(error)}", remedy) from error


def one_line(error: BaseException) -> str:
    """The error's kind and message in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")


def _takes(called: Callable[..., Any], arguments: tuple[object, ...]) -> bool:
    try:
        inspect.signature(called).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # some built-in functions have no signature
        return not arguments
    return True


def _module(field: str, name: str, where: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does; it stays, since the function may import more when it is called
    importlib.invalidate_caches()
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name and (where == error.name or where.startswith(f"{error.name}.")):
            rule = f"cannot be found: no module {error.name}"
            raise BadValue(field, repr(name), rule, FORM) from None
        raise _failed(field, name, error) from error
    except Exception as error:
        raise _failed(field, name, error) from error


def _file(field: str, name: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise BadValue(field, repr(name), f"cannot be found: no file {path}", FORM)
    # The module has a name of its own in sys.modules, where dataclasses and pickle look for it. So two files called data.py
    # stay apart, and two functions of one file see the same classes, unless the file was changed in between.
    try:
        content = str(path.resolve()).encode() + b"\n" + path.read_bytes()
    except OSError as error:
        raise _failed(field, name, error) from error
    unique = f"{path.stem}_{hashlib.sha256(content).hexdigest()[:8]}"
    if unique in sys.modules:
        return sys.modules[unique]
    spec = importlib.util.spec_from_file_location(unique, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[unique]
        raise _failed(field, name, error) from error
    return module


def _failed(field: str, name: str, error: Exception) -> BadValue:
    rule = f"cannot be imported: {one_line(error)}"
    return BadValue(field, repr(name), rule, "import it on its own to see the traceback")
