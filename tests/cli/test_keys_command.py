"""`fedlap keys`: from an authority to a revoked certificate, and one line for every mistake."""

import json
import sys

import pytest

from fedlap.deploy.keys import Keys
from fedlap.deploy.register import Register


@pytest.fixture
def keys(call, monkeypatch, tmp_path):
    """Run `fedlap keys …` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: call("keys", *words, out=False)


def test_the_way_of_a_client(keys, tmp_path):
    assert keys("authority")[0] == 0
    assert keys("server", "--host", "localhost", "--host", "127.0.0.1")[0] == 0
    code, out, _ = keys("request", "--name", "north")
    assert code == 0
    fingerprint = out.partition(" with key ")[2].split(";")[0]
    code, out, _ = keys(
        "sign", "keys/client-north/request.pem", "--name", "north", "--days", "20", "--to", "north.pem"
    )
    assert code == 0
    assert fingerprint in out
    assert keys("install", "north.pem")[0] == 0
    client, server = (
        Keys.load_client(tmp_path / "keys/client-north"),
        Keys.load_server(tmp_path / "keys/server"),
    )
    assert (client.name, server.facts.hosts) == ("north", ("localhost", "127.0.0.1"))

    code, out, err = keys("show")
    assert code == 0
    assert "expires in 19 days" in out
    assert err.splitlines() == ["warning: the certificate of client north expires in 19 days; renew it"]
    code, out, _ = keys("show", "--json")
    (authority, first, second) = json.loads(out)["certificates"]
    assert [authority["role"], first["name"], second["name"]] == ["authority", "server", "north"]
    assert second["fingerprint"] == client.facts.fingerprint
    assert "valid" in keys("show", "keys/server")[1]

    assert "revoked issues of north: 1" in keys("revoke", "north")[1]
    assert Register.load(server.register).allowed_common_names(["north"]) == {"north": []}
    code, out, err = keys("show")
    assert "revoked" in out
    assert err == ""


def test_the_way_of_a_peer(keys, tmp_path):
    assert keys("authority")[0] == 0
    words = ("request", "--name", "n7", "--host", "n7.example.org", "--host", "10.0.0.7")
    assert "request in keys/peer-n7/request.pem" in keys(*words)[1]
    code, out, _ = keys("sign", "keys/peer-n7/request.pem", "--name", "n7", "--to", "n7.pem")
    assert code == 0
    assert "certificate n7:1 for the hosts n7.example.org, 10.0.0.7 for key" in out
    assert "in keys/peer-n7" in keys("install", "n7.pem")[1]
    assert Keys.load_peer(tmp_path / "keys/peer-n7").name == "n7"
    certificate = json.loads(keys("show", "keys/peer-n7", "--json")[1])["certificates"][0]
    assert (certificate["role"], certificate["name"]) == ("peer", "n7")
    assert "revoked issues of n7: 1" in keys("revoke", "n7")[1]
    assert Register.load(tmp_path / "keys/authority/register.json").allowed_common_names(["n7"]) == {"n7": []}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["server", "--host", "localhost"], "private key 'keys/authority/key.pem' cannot be used"),
        (["server"], "no host given; pass --host"),
        (["request"], "pass --name for a client, --host for a server, or both for a peer"),
        (["request", "--name", "server", "--host", "b"], "choose another name for a peer"),
        (["request", "--name", "a\nb"], "choose another name"),
        (["sign", "nothing.pem"], "'nothing.pem' is not a request for a certificate"),
        (["install", "nothing.pem"], "certificate 'nothing.pem' cannot be used"),
        (["revoke", "north"], "private key 'keys/authority/key.pem' cannot be used"),
        (["show"], "certificate 'keys/authority/certificate.pem' cannot be used"),
    ],
)
def test_mistakes_are_one_line(keys, words, message, tmp_path):
    code, out, err = keys(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.rglob("*.pem"))


def test_a_missing_extra_is_one_line(keys, monkeypatch):
    monkeypatch.setattr("fedlap.deploy.extra.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "fedlap.cli.keys", raising=False)
    code, _, err = keys("authority")
    assert code == 2
    assert "`fedlap keys` needs the deploy extra; run pip install 'fedlap[deploy]'" in err
