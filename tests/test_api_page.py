"""docs/api.md is what scripts/api.py makes of the source, and it shows every public name."""

from dataclasses import dataclass
from importlib import import_module

import pytest
from scripts.api import PAGE, SECTIONS, home, markdown, page, public, signature

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_is_up_to_date():
    assert page() == TEXT, "docs/api.md differs from the source: run make api"
    assert 300 < TEXT.count("\n") < 1300


@pytest.mark.parametrize("section", SECTIONS)
def test_every_public_name_has_an_entry_or_a_link(section):
    whole = dict(zip(SECTIONS, TEXT.split("\n## ")[1:], strict=True))
    names = public(import_module(section))
    assert len(names) >= 1
    for name in names:
        if home(section, name) == section:
            assert whole[section].count(f"### `{name}`\n") == 1
        else:
            assert f"[`{name}`](#{name.lower()})" in whole[section]
            assert f"### `{name}`\n" in whole[home(section, name)]


def test_one_name_for_two_things_is_described_twice():
    assert home("prifedsync.fdp", "Answer") == "prifedsync.fdp"
    assert home("prifedsync.sync", "Answer") == "prifedsync.sync"


def test_signatures_are_as_they_are_written():
    def function(a: int, *, b: "list[str] | None" = None, **rest: object) -> float: ...

    assert signature("f", function) == "f(a: int, *, b: list[str] | None = None, **rest: object) -> float"

    @dataclass
    class Thing:
        long_name_of_a_field: int
        other_long_name_of_a_field: int = 1
        third_long_name_of_a_field: int = 2

    lines = signature("Thing", Thing).splitlines()
    assert lines[0] == "Thing("
    assert " ".join(line.strip() for line in lines[1:-1]).startswith("long_name_of_a_field: int, other_long")


def test_arguments_become_a_list():
    doc = "Summary: not an item.\n\nfirst: one\n    goes on\nsecond  two\nPlain words again."
    assert markdown(doc) == "Summary: not an item.\n\n- `first`: one goes on\n- `second`: two\n\nPlain words again."
