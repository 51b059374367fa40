"""The server gets a new certificate, as docs/deploy.md says, and clients know nothing of it."""

import shutil

from prifedsync.deploy.places import ProjectPlaces
from prifedsync.deploy.rehearsal import Clients
from prifedsync.deploy.serving import _link
from prifedsync.deploy.settings import server_settings
from prifedsync.deploy.superlink import SuperLink
from prifedsync.engines.flower.exchange import Exchange

from .live import command, deployed, last_lines, logs_shown, until


def test_clients_come_to_a_server_with_a_new_certificate(tmp_path):
    with deployed(tmp_path, "rounds=1") as copy, logs_shown(copy):
        old = copy.server.certificate.read_bytes()
        command("deploy", "certificate", tmp_path / "project")
        shutil.copytree(ProjectPlaces(tmp_path / "project").server.key.parent, copy.server.key.parent, dirs_exist_ok=True)
        assert copy.server.certificate.read_bytes() != old
        settings = server_settings(copy.server.folder)
        clients = Clients(copy)
        with SuperLink(settings, copy.server), Exchange(_link(settings, copy.server, 2**20)) as exchange:
            try:
                clients.start_site("hospital-a")
                until(
                    lambda: exchange.online == {"hospital-a"},
                    lambda: last_lines(copy.client("hospital-a").folder / "site.log"),
                )
            finally:
                clients.end()
