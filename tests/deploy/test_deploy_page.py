"""What docs/deploy.md says of settings, units, refusals and configs. tests/flower/test_page.py follows its commands."""

import configparser
import re
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from typer.main import get_command

from prifedsync.asking.refusals import Refusal
from prifedsync.cli.deploy import app
from prifedsync.config import load
from prifedsync.deploy import authority, serving, site
from prifedsync.deploy.settings import ServerSettings, SiteSettings
from prifedsync.terminal import deployment

from .runs import made, policies

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "prifedsync"
PARTIES = ("prifedsync-server", "prifedsync-net", "prifedsync-owner")


def section(title):
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def table(text, header):
    """Rows of the table with this header, as lists of cells."""
    lines = text.split(f"| {header} |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


# ---------------------------------------------------------------------- settings


def names_of(kind, inside=""):
    """The dotted names of all fields but the file's folder, which is none of its fields."""
    found = []
    for each in fields(kind):
        if each.name == "folder":
            continue
        nested = each.default_factory if is_dataclass(each.default_factory) else None
        found += names_of(nested, f"{each.name}.") if nested else [f"{inside}{each.name}"]
    return found


@pytest.mark.parametrize(("kind", "file"), [(ServerSettings, "server.toml"), (SiteSettings, "site.toml")])
def test_every_field_is_explained_and_no_other(kind, file):
    text = section("Settings").split(f"`{file}`, at")[1]
    rows = table(text, "field | what it is")
    assert [name for row in rows for name in re.findall(r"`([\w.]+)`", row[0])] == names_of(kind)
    assert all(meaning for _, meaning in rows)


def test_numbers_on_the_page_are_those_of_the_code():
    assert f"every {site.AGAIN:g} s" in section("When something fails")
    assert f"ends after {authority.SERVER_DAYS} days" in section("New keys and certificates")
    assert f"nothing for {deployment.STALE:g} s" in PAGE
    assert serving.ServerSettings().waiting.offline == 90
    assert "90 s are enough" in section("Settings")


# ---------------------------------------------------------------------- commands, users and units


def test_every_command_is_on_the_page():
    for name in get_command(app).commands:
        assert f"prifedsync deploy {name}" in PAGE, name


def test_units_and_users_are_those_that_are_written(tmp_path):
    made(tmp_path / "p")
    folders = {"server/": tmp_path / "p/server", "clients/NAME/": tmp_path / "p/clients/hospital-a"}
    rows = table(section("Users, units and containers"), "folder | unit | user | it may write | it cannot enter")
    seen = set()
    for folder, unit, user, writes, closed in rows:
        path = folders[folder.strip("`")] / unit.strip("`")
        parser = configparser.ConfigParser(interpolation=None)
        parser.optionxform = str
        parser.read_string(path.read_text())
        service = parser["Service"]
        assert service["User"] == user.strip("`")
        for name in re.findall(r"`(\w+)/`", writes):
            assert any(place.endswith(f"/{name}") for place in service["ReadWritePaths"].split())
        for name in re.findall(r"`(\w+)/`", closed):
            assert service["InaccessiblePaths"].endswith(f"/{name}")
        assert ("any network" in closed) == (service.get("PrivateNetwork") == "yes")
        seen.add(path)
    assert seen == {path for folder in folders.values() for path in folder.glob("*.service")}
    assert {user.strip("`") for _, _, user, *_ in rows} == set(PARTIES)


def test_targets_of_images_are_those_that_are_written(tmp_path):
    made(tmp_path / "p")
    file = (tmp_path / "p/clients/hospital-a/Containerfile").read_text()
    targets = re.findall(r"--target (\w+)", "".join(blocks("sh")))
    assert targets
    assert all(re.search(rf"^FROM \w+ AS {target}$", file, flags=re.MULTILINE) for target in targets)


# ---------------------------------------------------------------------- what is seen when something fails


def quoted(text):
    return set(re.findall(r'"([^"]+)"', text))


def test_what_is_seen_is_what_the_code_says():
    """Quoted words of the table are in the source: a message that is changed must be changed on the page too."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    for row in table(
        section("When something fails"), "what happens | what you see at the server | what it costs | what to do"
    ):
        for words in quoted(row[1]):
            for part in re.split(r", | NAME", words):
                assert part in source, part


def test_refusals_named_on_the_page_exist():
    known = {refusal.value for refusal in Refusal}
    named = quoted(section("When something fails") + section("Upgrades")) & known
    assert named == {
        "this owner cannot answer now",
        "this is the owner of another client",
        "the question is of another version",
    }


# ---------------------------------------------------------------------- a project of one's own


def test_the_config_on_the_page_makes_a_project_without_records(tmp_path):
    (body,) = blocks("toml")
    path = tmp_path / "run.toml"
    path.write_text(body)
    written = made(tmp_path / "p", path)
    assert not written.records
    assert not written.notes
    sizes = {name: own["records"] for name, own in tomllib.loads(body)["clients"].items()}
    assert {name: policy.source.records for name, policy in policies(tmp_path / "p").items()} == sizes
    assert load(tmp_path / "p/server/config.toml").privacy.masks
