"""docs/api.md: every public name with its signature and its docstring.

`python scripts/api.py` writes the page. `tests/test_api_page.py` fails if the page is out of date.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ForwardRef

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "api.md"
PACKAGE = "prifedsync"
SECTIONS = (
    PACKAGE,
    *(f"{PACKAGE}.{room}" for room in ("accounting", "fdp", "rules", "data", "predicting", "sync", "server")),
)
WIDTH = 100  # characters of a signature in one line
HEAD = """# API

Every public name, with its signature and its docstring. `make api` writes this page from the source, so do not edit it.
[tour.ipynb](tour.ipynb) shows the names at work, and [training.md](training.md) explains what they do.
"""
ITEM = re.compile(r"([A-Za-z_]\w*(?: = \w+)?)(?:: | {2,})(\S.*)")  # an argument or a field in a docstring, and what it is


def page() -> str:
    """The whole page."""
    parts = [HEAD, "Contents: " + " · ".join(f"[`{name}`](#{_slug(name)})" for name in SECTIONS) + "\n"]
    for section in SECTIONS:
        module = import_module(section)
        parts.append(f"## `{section}`\n\n{markdown(inspect.getdoc(module) or '')}\n")
        elsewhere = [name for name in public(module) if home(section, name) != section]
        if elsewhere:
            links = ", ".join(f"[`{name}`](#{_slug(name)})" for name in elsewhere)
            parts.append(f"Also here, and described below: {links}.\n")
        parts += [entry(module, name) for name in public(module) if home(section, name) == section]
    return "\n".join(parts)


def public(module: ModuleType) -> list[str]:
    """The public names of a module in the order of its `__all__`; without one, those that it defines itself."""
    names = getattr(module, "__all__", None)
    if names is None:
        own = {name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
        names = [name for name in vars(module) if name in own and not name.startswith("_")]
    return [name for name in names if name != "__version__"]


def home(section: str, name: str) -> str:
    """The section that describes a name which several of them have: that of the room which defines it, or the first."""
    origin, _ = defined(section, name)
    listed = [other for other in SECTIONS if name in public(import_module(other)) and defined(other, name)[0] == origin]
    rooms = [other for other in listed if other != PACKAGE and f"{origin}.".startswith(f"{other}.")]
    return (rooms or listed)[0]


# ---------------------------------------------------------------------- one name


def entry(module: ModuleType, name: str) -> str:
    """Heading, signature, docstring and members."""
    value = getattr(module, name)
    lines = [f"### `{name}`"]
    if inspect.isclass(value):
        lines += [_code(_class_signature(value)), markdown(_class_doc(value)), "", *_members(value)]
    elif inspect.isfunction(value):
        lines += [_code(signature(name, value)), markdown(inspect.getdoc(value) or "")]
    else:
        source, comment = _assignment(module.__name__, name)
        lines += [_code(source), comment]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def signature(name: str, function: Any, skip: int = 0, wrap: bool = True) -> str:
    """The call of a function, on several lines if it is long; `skip` leaves out `self`."""
    found = inspect.signature(function)
    parameters = list(found.parameters.values())[skip:]
    parts = [_parameter(each) for each in parameters]
    kinds = [each.kind for each in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        parts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    returned = found.return_annotation
    arrow = "" if returned in (inspect.Signature.empty, "None", None) else f" -> {_annotation(returned)}"
    line = f"{name}({', '.join(parts)}){arrow}"
    if len(line) <= WIDTH or not wrap:
        return line
    return f"{name}(\n" + "\n".join(_filled(parts)) + f"\n){arrow}"


def _filled(parts: list[str]) -> list[str]:
    """Parameters, as many in a line as fit; none is broken."""
    lines = [""]
    for part in parts:
        if len(lines[-1]) + len(part) > WIDTH and lines[-1]:
            lines.append("")
        lines[-1] += f"{part}, " if lines[-1] else f"    {part}, "
    return [line.rstrip() for line in lines]


def _parameter(each: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(each.kind, "")
    text = f"{stars}{each.name}"
    if each.annotation is not each.empty:
        text += f": {_annotation(each.annotation)}"
    if each.default is not each.empty:
        default = "…" if repr(each.default) == "<factory>" else repr(each.default)
        text += f" = {default}"
    return text


def _annotation(of: Any) -> str:
    if isinstance(of, ForwardRef):
        return of.__forward_arg__
    return of if isinstance(of, str) else inspect.formatannotation(of)


def _class_signature(kind: type) -> str:
    if issubclass(kind, enum.Enum):
        return "\n".join(f"{kind.__name__}.{member.name}" for member in kind)
    abstract = inspect.isabstract(kind) or getattr(kind, "_is_protocol", False)
    made_here = any("__init__" in vars(each) or "__new__" in vars(each) for each in kind.__mro__ if _ours(each))
    if abstract or not made_here:
        bases = ", ".join(base.__name__ for base in kind.__bases__ if base is not object)
        return f"class {kind.__name__}({bases})" if bases else f"class {kind.__name__}"
    call = signature(kind.__name__, kind)
    return call.removesuffix(" -> None")


def _ours(kind: type) -> bool:
    return kind.__module__.split(".")[0] == PACKAGE


def _class_doc(kind: type) -> str:
    """Its docstring; a class that is alone in its file, as rules are, may leave that to the file."""
    own = kind.__dict__.get("__doc__") or ""
    if own and not own.startswith(f"{kind.__name__}("):  # else it is a dataclass that was given its signature
        return inspect.cleandoc(own)
    return inspect.getdoc(sys.modules[kind.__module__]) or ""


def _members(kind: type) -> list[str]:
    """Fields with what their comment says, then methods and properties with the first paragraph of their docstrings."""
    listed = [f"- `{name}`: {text}" for name, text in _fields(kind)]
    bare = []
    inherited = {name for base in kind.__mro__[1:] if _ours(base) for name in vars(base)}
    for name, value in vars(kind).items():
        if name in inherited and not getattr(value, "__doc__", None):
            continue  # described where it is first declared
        call = _call(name, value)
        text = (inspect.getdoc(getattr(value, "__func__", value)) or "").split("\n\n")[0].replace("\n", " ")
        if call and text and text != "Call self as a function.":
            listed.append(f"- `{call}`: {text}")
        elif call:
            bare.append(f"`{call}`")
    return [*listed, *([f"- {', '.join(bare)}"] if bare else [])]


def _call(name: str, value: Any) -> str:
    """How a public method or property is used; nothing for anything else."""
    if name.startswith("_") and name != "__call__":
        return ""
    if isinstance(value, (property, cached_property)):
        return name
    function = getattr(value, "__func__", value)
    if not inspect.isfunction(function):
        return ""
    return signature(name, function, skip=0 if isinstance(value, staticmethod) else 1, wrap=False)


def _fields(kind: type) -> Iterator[tuple[str, str]]:
    """Fields and class attributes that are documented: by what they were declared with, or by a comment on their line."""
    declared = {}
    if dataclasses.is_dataclass(kind):
        declared = {each.name: each.metadata["declared"].doc for each in dataclasses.fields(kind) if each.metadata}
    source = textwrap.dedent(inspect.getsource(kind))
    (tree,) = ast.parse(source).body
    for node in getattr(tree, "body", ()):
        name = getattr(getattr(node, "target", None), "id", "_")
        comment = source.splitlines()[(node.end_lineno or 1) - 1].partition("  # ")[2]
        text = declared.get(name) or comment.removesuffix("fmt: skip")
        if text and not name.startswith("_"):
            yield name, text


def _assignment(section: str, name: str) -> tuple[str, str]:
    """The statement that defines a value or a type, and the comment behind it or above it."""
    origin, node = defined(section, name)
    lines = Path(inspect.getsourcefile(import_module(origin)) or "").read_text(encoding="utf-8").splitlines()
    statement = lines[node.lineno - 1 : node.end_lineno]
    source, _, behind = statement[-1].partition("  # ")
    above = lines[node.lineno - 2]
    comment = behind or (above.removeprefix("# ") if above.startswith("# ") else "")
    return "\n".join([*statement[:-1], source]), comment


@cache
def defined(module: str, name: str) -> tuple[str, Any]:
    """The module in which a name is defined, found by following imports, and the statement that defines it."""
    tree = _tree(module)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any((each.asname or each.name) == name for each in node.names):
            package = module if _is_package(module) else module.rpartition(".")[0]
            start = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            return defined(".".join([*start, *([node.module] if node.module else [])]), name)
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if getattr(node, "name", None) == name or any(getattr(each, "id", None) == name for each in targets):
            return module, node
    raise LookupError(f"{name} is not defined in {module}")


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(import_module(module)))


def _is_package(module: str) -> bool:
    return hasattr(import_module(module), "__path__")


# ---------------------------------------------------------------------- text


def markdown(doc: str) -> str:
    """A docstring as Markdown: the summary as it is; below it, arguments and fields become a list."""
    summary, *rest = doc.split("\n\n")
    return "\n\n".join([summary, *(_paragraph(each) for each in rest)])


def _paragraph(text: str) -> str:
    lines: list[str] = []
    for line in text.splitlines():
        item = ITEM.fullmatch(line)
        in_list = bool(lines) and lines[-1].startswith("- ")
        if item:
            lines += [] if in_list or not lines else [""]
            lines.append(f"- `{item[1]}`: {item[2]}")
        elif in_list and line.startswith("  "):
            lines[-1] += f" {line.strip()}"
        else:
            lines += ["", line] if in_list else [line]
    return "\n".join(lines)


def _code(text: str) -> str:
    return f"```py\n{text}\n```"


def _slug(heading: str) -> str:
    """How a heading is linked to."""
    return re.sub(r"[^\w-]", "", heading.lower())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
