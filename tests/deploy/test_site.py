"""What a client's network side refuses before it starts anything."""

import pytest

from prifedsync.config import to_toml
from prifedsync.deploy.settings import SiteSettings
from prifedsync.deploy.site import join
from prifedsync.values import BadValue

FILES = ("tasks.secret", "node.key", "ca.crt")


def site(folder, without=(), insecure=False, mode=0o600):
    folder.mkdir(mode=0o700)
    (folder / "site.toml").write_text(to_toml(SiteSettings(client="a", server="127.0.0.1:9", insecure=insecure)))
    for name in FILES:
        if name not in without:
            (folder / name).write_bytes(b"x")
            (folder / name).chmod(mode)
    return folder


@pytest.mark.parametrize("missing", FILES)
def test_a_folder_that_lacks_a_file_is_refused(tmp_path, missing):
    with pytest.raises(BadValue, match=f"{missing} is not there; .* copy the whole folder"):
        join(site(tmp_path / "site", [missing]))


@pytest.mark.parametrize("name", ["tasks.secret", "node.key"])
def test_a_secret_that_others_may_read_is_refused(tmp_path, name):
    folder = site(tmp_path / "site")
    (folder / name).chmod(0o640)
    with pytest.raises(BadValue, match="may be read or changed by other users"):
        join(folder)


def test_without_keys_none_is_asked_for(tmp_path):
    with pytest.raises(BadValue, match=r"tasks\.secret is not there"):
        join(site(tmp_path / "site", FILES, insecure=True))
