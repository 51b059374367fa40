"""The systemd units and container files of a project: two users, and nothing of the owner's for the network side."""

import configparser
import re
import shutil
import subprocess
import tomllib

import pytest

from prifedsync.owner.policy import from_mapping

from .runs import made, written_config

HARDENED = {
    "UMask": "0077",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "LimitCORE": "0",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("units")
    made(folder / "p", written_config(folder))
    return folder / "p"


def service(path):
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read_string(path.read_text())
    assert parser["Install"]["WantedBy"] == "multi-user.target"
    return dict(parser["Service"])


def test_the_two_sides_of_a_client_are_two_users(project):
    client = project / "clients/north"
    owner = service(client / "prifedsync-owner.service")
    site = service(client / "prifedsync-site.service")
    assert owner["User"] != site["User"]
    for unit in (owner, site):
        assert HARDENED.items() <= unit.items()
    home = "/srv/prifedsync/north"
    assert owner["ExecStart"].endswith(f"prifedsync owner serve {home}/owner/policy.toml --quiet")
    assert owner["PrivateNetwork"] == "yes"
    assert owner["ReadWritePaths"].split() == [f"{home}/owner", f"{home}/door"]
    assert owner["InaccessiblePaths"] == f"{home}/site"
    assert owner["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert site["ExecStart"].endswith(f"prifedsync deploy join {home}/site")
    assert site["InaccessiblePaths"] == f"{home}/owner"
    assert site["ReadWritePaths"] == f"{home}/site"
    assert (site["Restart"], site["RestartSec"]) == ("always", "10")


def test_the_server_has_a_user_of_its_own(project):
    server = service(project / "server/prifedsync-server.service")
    assert HARDENED.items() <= server.items()
    assert server["User"] == "prifedsync-server"
    assert server["ExecStart"].endswith("prifedsync deploy serve /srv/prifedsync/server")


def test_a_server_on_a_low_port_may_listen_there(tmp_path):
    source = written_config(tmp_path)
    for port, wanted in ((443, "CAP_NET_BIND_SERVICE"), (9443, "")):
        made(tmp_path / str(port), source, hosts=("fl.example.org",), port=port)
        server = service(tmp_path / str(port) / "server/prifedsync-server.service")
        assert (server["CapabilityBoundingSet"], server["AmbientCapabilities"]) == (wanted, wanted)


def test_systemd_reads_the_units(project, tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("there is no systemd here")
    for path in project.rglob("*.service"):
        text = re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", path.read_text())
        tried = tmp_path / path.name
        tried.write_text(re.sub(r"(User|Group)=\S+", r"\1=root", text))
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(tried)], capture_output=True, text=True, check=False, timeout=60
        )
        assert path.name not in done.stderr, done.stderr


def test_the_page_of_a_client_makes_the_users_of_its_units(project):
    client = project / "clients/north"
    page = (client / "README.md").read_text()
    owner = service(client / "prifedsync-owner.service")
    site = service(client / "prifedsync-site.service")
    assert f"--gid {owner['Group']} {owner['User']}" in page
    assert f"--groups {owner['Group']} {site['User']}" in page
    assert f"chown -R {owner['User']}:{owner['Group']} owner door" in page
    assert "chmod 0750 door" in page


def test_the_page_lets_the_network_side_ask(project):
    client = project / "clients/north"
    (command,) = re.findall(r"sed -i '(.*?)' owner/policy\.toml", (client / "README.md").read_text())
    done = subprocess.run(
        ["sed", command, str(client / "owner/policy.toml")], capture_output=True, text=True, check=True, timeout=30
    )
    site = service(client / "prifedsync-site.service")
    assert from_mapping(tomllib.loads(done.stdout)).users == (site["User"],)


def test_the_page_of_a_client_says_all_that_containers_need(project):
    client = project / "clients/north"
    page = (client / "README.md").read_text()
    assert "install -d -m 755 /srv/prifedsync\n" in page
    section = page.partition("## With containers")[2].partition("\n## ")[0]
    users = (client / "Containerfile").read_text()
    (group,) = re.findall(r"groupadd --gid (\d+) prifedsync-ask", users)
    (owner,) = re.findall(r"useradd --uid (\d+) --gid prifedsync-ask ", users)
    (site,) = re.findall(r"useradd --uid (\d+) --user-group", users)
    assert f"chown -R {owner}:{group} owner door" in section
    assert f"chown -R {site}:{site} site" in section
    assert "chmod 0700 owner site\nchmod 0750 door" in section
    assert "runuser" not in section
    assert "/opt/prifedsync" not in section


def test_every_step_of_the_units_has_its_container(project):
    page = (project / "clients/north/README.md").read_text()
    steps, _, rest = page.partition("## With containers")
    section = rest.partition("\n## ")[0].replace("\\\n", "")
    home = "/srv/prifedsync/north"
    commands = re.findall(r"runuser -u prifedsync-(owner|net) -- /opt/prifedsync/bin/prifedsync (.*)", steps)
    assert len(commands) == 4
    for user, words in commands:
        image = {"owner": "prifedsync-owner", "net": "prifedsync-site"}[user]
        command = re.sub(r" (owner/policy\.toml|site)\b", rf" {home}/\1", words)
        (line,) = re.findall(
            rf"^docker run --rm (.*) {image} +prifedsync {re.escape(command)}$", section, flags=re.MULTILINE
        )
        mounted = set(re.findall(rf"-v {home}/(\w+):{home}/\1(?= |$)", line))
        assert mounted <= ({"owner", "door"} if user == "owner" else {"site"})
        assert ("owner" if user == "owner" else "site") in mounted


def test_containers_keep_the_two_sides_apart(project):
    text = (project / "clients/north/Containerfile").read_text()
    assert "AS owner" in text
    assert "AS site" in text
    assert "COPY" not in text
    assert re.findall(r"^FROM (\S+)", text, flags=re.MULTILINE) == ["python:3.11-slim", "users", "users"]
    for user in ("prifedsync-owner", "prifedsync-net"):
        assert re.search(rf"^USER {user}", text, flags=re.MULTILINE)
