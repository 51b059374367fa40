"""A digest of what a module computes besides its weights: its code, and everything its code reads.

Two modules with parameters of the same shapes may compute different gradients: their forward, an attribute, a value in a
closure or a global variable may differ. All of these are part of the digest, which is the same in every process. The user's
code is followed through functions, classes, closures and globals. Code of an installed package is identified by package,
version and file. Code of torch, Python and this package is identified by name.
"""

from __future__ import annotations

import dis
import functools
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from . import digests

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), torch.dtype, torch.device, torch.Size)
TRUSTED = ("torch", "prifedsync", "builtins")  # identified elsewhere, by version or by source
UNSTABLE = {  # entries of a class that do not affect what it computes
    "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__firstlineno__",
    "__static_attributes__", "_abc_impl",
}  # fmt: skip
CODE = (
    "co_code", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_names", "co_varnames",
    "co_freevars", "co_cellvars", "co_exceptiontable",
)  # fmt: skip


def of(*values: object) -> bytes:
    """The digest of modules, functions or other values."""
    return _Digests().of(values)


class _Digests:
    """Digests of values by their content: two references to one value and two equal values have the same digest."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, bytes]] = {}  # keeps the value alive, so that its id is not reused
        self._open: dict[int, int] = {}  # values that contain the current one → their depth

    def of(self, value: object) -> bytes:
        if isinstance(value, PLAIN):
            return digests.of([type(value).__name__, repr(value)])
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._open:
            return digests.of(["cycle", str(len(self._open) - self._open[id(value)])])
        self._open[id(value)] = len(self._open)
        digest = digests.of(self._parts(value))
        del self._open[id(value)]
        self._known[id(value)] = value, digest
        return digest

    def _parts(self, value: Any) -> Iterator[Tensor | bytes | str]:
        for kind, parts in _KINDS:
            if isinstance(value, kind):
                yield from parts(self, value)
                return
        yield from self._object(value)

    # ------------------------------------------------------------------ data

    def _tensor(self, value: Tensor) -> Iterator[Tensor | str]:
        if isinstance(value, (nn.UninitializedParameter, nn.UninitializedBuffer)):
            yield "no shape yet"
        elif isinstance(value, nn.Parameter):  # its values are digested elsewhere
            yield f"parameter {tuple(value.shape)} {value.dtype} {value.requires_grad}"
        else:
            yield "tensor on meta" if value.is_meta else value

    def _array(self, value: Any) -> Iterator[bytes | str]:
        yield f"array {value.dtype} {value.shape}"
        yield self.of(value.tolist()) if value.dtype.hasobject else value.tobytes()

    def _sequence(self, value: Any) -> Iterator[bytes | str]:
        yield type(value).__name__
        yield from map(self.of, value)

    def _set(self, value: Any) -> Iterator[bytes | str]:
        yield type(value).__name__
        yield from sorted(map(self.of, value))

    def _mapping(self, value: Mapping[Any, Any]) -> Iterator[bytes | str]:
        yield "mapping"
        for key, item in value.items():
            yield self.of(key)
            yield self.of(item)

    # ------------------------------------------------------------------ code

    def _code(self, value: CodeType) -> Iterator[bytes | str]:
        yield "code"
        for name in CODE:
            yield self.of(getattr(value, name))
        yield from map(self.of, value.co_consts)

    def _function(self, value: FunctionType) -> Iterator[bytes | str]:
        if _is_installed(value.__module__):
            yield from _named(value)
            return
        yield "function"
        yield self.of(value.__code__)
        yield self.of(value.__defaults__)
        yield self.of(value.__kwdefaults__)
        yield from map(self.of, value.__closure__ or ())
        for name in sorted(_names(value.__code__) & value.__globals__.keys()):
            yield name
            yield self.of(value.__globals__[name])

    def _method(self, value: MethodType) -> Iterator[bytes | str]:
        yield "method"
        yield self.of(value.__func__)
        yield self.of(value.__self__)

    def _wrapped(self, value: staticmethod[Any, Any] | classmethod[Any, Any, Any]) -> Iterator[bytes | str]:
        yield type(value).__name__
        yield self.of(value.__func__)

    def _property(self, value: property) -> Iterator[bytes | str]:
        yield "property"
        yield self.of(value.fget)

    def _partial(self, value: functools.partial[Any]) -> Iterator[bytes | str]:
        yield "partial"
        yield self.of(value.func)
        yield self.of(value.args)
        yield self.of(value.keywords)

    def _cell(self, value: CellType) -> Iterator[bytes | str]:
        yield "cell"
        try:
            held = value.cell_contents
        except ValueError:  # the name has no value yet
            return
        yield self.of(held)

    def _class(self, value: type) -> Iterator[bytes | str]:
        if _is_installed(value.__module__):
            yield from _named(value)
            return
        yield "class"
        for name, item in sorted(vars(value).items()):
            if name not in UNSTABLE:
                yield name
                yield self.of(item)
        yield from map(self.of, value.__bases__)

    def _package(self, value: ModuleType) -> Iterator[bytes | str]:
        yield f"package {value.__name__}"
        if not _is_installed(value.__name__):
            yield _file(value.__name__)

    # ------------------------------------------------------------------ objects

    def _module(self, value: nn.Module) -> Iterator[bytes | str]:
        yield "module"
        yield self.of(type(value))
        for name, item in vars(value).items():
            if name == "training":  # decided by the engine
                continue
            yield name
            # hook ids count all hooks of the process, so they are left out
            yield self.of(list(item.values()) if "hook" in name and isinstance(item, dict) else item)

    def _object(self, value: Any) -> Iterator[bytes | str]:
        """Any other value: all its attributes if its class is the user's, otherwise only numbers and text."""
        yield "object"
        yield self.of(type(value))
        foreign = _is_installed(type(value).__module__)
        for name, item in _attributes(value):
            if not foreign or isinstance(item, PLAIN):
                yield name
                yield self.of(item)


_KINDS: tuple[tuple[Any, Callable[[_Digests, Any], Iterator[Tensor | bytes | str]]], ...] = (
    (Tensor, _Digests._tensor),
    (nn.Module, _Digests._module),
    ((np.ndarray, np.generic), _Digests._array),
    ((tuple, list), _Digests._sequence),
    ((set, frozenset), _Digests._set),
    (Mapping, _Digests._mapping),
    (CodeType, _Digests._code),
    (FunctionType, _Digests._function),
    (MethodType, _Digests._method),
    ((staticmethod, classmethod), _Digests._wrapped),
    (property, _Digests._property),
    (functools.partial, _Digests._partial),
    (CellType, _Digests._cell),
    (type, _Digests._class),
    (ModuleType, _Digests._package),
    (BuiltinFunctionType, lambda digests, value: _named(value)),
)


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def _names(code: CodeType) -> set[str]:
    """The global names that the code reads, nested functions included."""
    read = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return read.union(*inner)


def _named(value: Any) -> Iterator[bytes | str]:
    """A function or class of an installed package."""
    package = getattr(value, "__module__", None) or "builtins"
    yield f"{package} {getattr(value, '__qualname__', type(value).__name__)}"
    top = package.partition(".")[0]
    if top not in TRUSTED and top not in sys.stdlib_module_names:
        yield str(getattr(sys.modules.get(top), "__version__", ""))
        yield _file(package)


@functools.cache
def _file(package: str) -> bytes:
    """The digest of a module's source file; the empty digest if there is no file."""
    path = getattr(sys.modules.get(package), "__file__", None)
    return digests.of([Path(path).read_bytes()] if path and Path(path).is_file() else [])


@functools.cache
def _is_installed(package: str | None) -> bool:
    """Whether code comes from torch, this package, Python or another installed package, and is not the user's own."""
    top = (package or "").partition(".")[0]
    if top in TRUSTED or (top in sys.stdlib_module_names and top != "__main__"):
        return True
    path: str | None = getattr(sys.modules.get(top), "__file__", None)
    if path is None:
        return False
    places = [Path(sysconfig.get_paths()[name]).resolve() for name in ("purelib", "platlib")]
    return any(place in Path(path).resolve().parents for place in places)
