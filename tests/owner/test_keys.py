"""Identities: private from the first byte, replaced with the old one beside it, and pinned by the others."""

import stat
from datetime import date

import pytest

from prifedsync.local.masks import Peer, public_identity
from prifedsync.owner.keys import make_identity, pinned, read_identity
from prifedsync.owner.policy import EXAMPLE, from_mapping
from prifedsync.values import BadValue

RUN = b"one meeting"


def owner(folder, name, peers=None):
    home = folder / name
    home.mkdir(exist_ok=True)
    masks = {"identity": "identity.key", "peers": {peer: key.hex() for peer, key in (peers or {}).items()}}
    return from_mapping({**EXAMPLE, "client": name, "masks": masks}, home)


def peer_of(policy):
    return Peer(policy.client, read_identity(policy), RUN, pinned(policy), 2)


def test_a_new_identity_is_private_and_its_public_half_is_given(tmp_path):
    policy = owner(tmp_path, "a")
    public = make_identity(policy)
    path = policy.path("identity")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert public == public_identity(read_identity(policy))
    assert public.hex() not in path.read_text()
    assert sorted(each.name for each in path.parent.iterdir()) == ["identity.key"]


def test_an_identity_is_not_replaced_by_accident(tmp_path):
    policy = owner(tmp_path, "a")
    make_identity(policy)
    before = read_identity(policy)
    with pytest.raises(BadValue, match="holds an identity already; to replace it, add --new"):
        make_identity(policy)
    assert read_identity(policy) == before


def test_old_identities_stay_beside_the_new_one(tmp_path):
    policy = owner(tmp_path, "a")
    day = date(2026, 3, 1)
    secrets = []
    for new in (False, True, True, True):
        make_identity(policy, new=new, today=day)
        secrets.append(read_identity(policy).hex())
    assert len(set(secrets)) == 4
    path = policy.path("identity")
    kept = [path.with_name(f"identity.key.2026-03-01{end}") for end in ("", ".2", ".3")]
    assert [each.read_text().strip() for each in kept] == secrets[:3]
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in kept)


def test_what_is_no_identity_is_refused(tmp_path):
    policy = owner(tmp_path, "a")
    with pytest.raises(BadValue, match=r"does not exist; `prifedsync owner key POLICY` makes it"):
        read_identity(policy)
    path = policy.path("identity")
    for text in ("", "ab", "g" * 64, "A" * 64, "a" * 64 + "\n\n", "é" * 64):
        path.write_text(text)
        path.chmod(0o600)
        with pytest.raises(BadValue, match="64 hexadecimal digits"):
            read_identity(policy)
    path.write_text("a" * 64)
    assert len(read_identity(policy)) == 32
    path.chmod(0o640)
    with pytest.raises(BadValue, match="chmod 600"):
        read_identity(policy)
    with pytest.raises(BadValue, match=r"masks\.identity"):
        read_identity(from_mapping(EXAMPLE, tmp_path))


def test_the_own_key_is_no_peers_key(tmp_path):
    policy = owner(tmp_path, "a")
    public = make_identity(policy)
    with pytest.raises(BadValue, match=r"masks\.peers\.b = .* is this owner's own key"):
        pinned(owner(tmp_path, "a", {"b": public}))


def test_a_replaced_key_is_accepted_once_it_is_pinned_and_the_old_one_is_refused_then(tmp_path):
    a, b = owner(tmp_path, "a"), owner(tmp_path, "b")
    old, of_b = make_identity(a), make_identity(b)
    knows_b = owner(tmp_path, "a", {"b": of_b})
    before = peer_of(knows_b).introduction
    peer_of(owner(tmp_path, "b", {"a": old})).meet([before])  # the first key works

    new = make_identity(a, new=True)
    after = peer_of(knows_b).introduction
    with pytest.raises(BadValue, match="is not signed by the pinned identity of a"):
        peer_of(owner(tmp_path, "b", {"a": old})).meet([after])
    peer_of(owner(tmp_path, "b", {"a": new})).meet([after])
    with pytest.raises(BadValue, match="is not signed by the pinned identity of a"):
        peer_of(owner(tmp_path, "b", {"a": new})).meet([before])
