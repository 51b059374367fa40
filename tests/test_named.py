"""Functions by name."""

import sys

import pytest

from prifedsync import named
from prifedsync.values import BadValue


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder of its own, and no trace of it afterwards."""
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_module_of_the_current_folder(folder):
    (folder / "named_here.py").write_text("def one(): return 1\n")
    (folder / "named_package").mkdir()
    (folder / "named_package" / "inner.py").write_text("from named_here import one\n")
    assert named.function("f", "named_here:one")() == 1
    assert named.function("f", "named_package.inner:one")() == 1


def test_a_file_by_its_path(folder):
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "same.py").write_text(
            f"from dataclasses import dataclass\n@dataclass\nclass D:\n    x: int = 1\ndef who(): return '{name}'\n"
        )
    assert [named.call("f", f"{name}/same.py:who") for name in "ab"] == ["a", "b"]


def test_functions_of_one_file_share_its_classes_until_it_changes(folder):
    (folder / "classes.py").write_text("class Layer: pass\ndef one(): return Layer\ndef two(): return Layer\n")
    first = named.call("f", "classes.py:one")
    assert named.call("f", "classes.py:two") is first
    (folder / "classes.py").write_text("class Layer: changed = True\ndef one(): return Layer\n")
    assert named.call("f", "classes.py:one").changed


def test_a_function_gets_what_it_takes(folder):
    (folder / "named_calls.py").write_text(
        "def none(): return ()\ndef both(a, b): return a, b\n"
        "def some(a=0, b=0, c=3): return a, b, c\ndef more(a, b, c): ...\n"
    )
    assert named.call("f", "named_calls:none", 1, 2) == ()
    assert named.call("f", "named_calls:both", 1, 2) == (1, 2)
    assert named.call("f", "named_calls:some", 1, 2) == (1, 2, 3)
    assert named.call("f", "builtins:dict") == {}
    with pytest.raises(BadValue, match="must take 2 arguments or none"):
        named.call("f", "named_calls:more", 1, 2)


def test_a_refusal_of_the_function_s_own_comes_through(folder):
    (folder / "named_refuses.py").write_text(
        "from prifedsync.values import BadValue\ndef f(): raise BadValue('rows', 3, 'must be 4')\n"
    )
    with pytest.raises(BadValue, match=r"^rows = 3 must be 4$"):
        named.call("f", "named_refuses:f")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nothing", "does not name a function"),
        (":f", "does not name a function"),
        ("module:", "does not name a function"),
        ("module:a.b", "does not name a function"),
        ("no_such_module:f", "no module no_such_module"),
        ("json.no_such:f", "no module json.no_such"),
        ("json:no_such", "no no_such to call in json; it has"),
        ("nowhere/file.py:f", "no file nowhere/file.py"),
        ("named_needs:f", "ModuleNotFoundError: No module named 'not_installed'"),
        ("named_broken:f", "SyntaxError"),
        ("named_broken.py:f", "SyntaxError"),
        ("..up:f", "cannot be imported"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused_in_one_line(folder, name, says):
    (folder / "named_needs.py").write_text("import not_installed\n")
    (folder / "named_broken.py").write_text("def f(:\n")
    with pytest.raises(BadValue) as refused:
        named.function("data.source", name)
    line = str(refused.value)
    assert line.startswith(f"data.source = {name!r} ")
    assert says in line
    assert "\n" not in line
