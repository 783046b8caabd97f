"""Secrets stored on the server, and rules that insert them into requests."""

import uuid

import pytest
from e2b import AsyncSecret, Sandbox, SandboxException, Secret, SecretException, SecretNotFoundException


@pytest.fixture
def name():
    name = f"key-{uuid.uuid4().hex}"
    yield name
    Secret.destroy(name)


def test_a_secret_is_kept_without_its_value(name):
    made = Secret.create(name, "s3cret-value", metadata={"owner": "me"})
    assert (made.name, made.version, made.metadata) == (name, 1, {"owner": "me"})
    assert made.secret_id.startswith("sec_") and made.created_at == made.updated_at
    assert Secret.get_info(name) == Secret.get_info(made.secret_id) == made
    assert "s3cret" not in repr(made)


def test_names_are_lowercased(name):
    made = Secret.create(name.upper(), "s3cret-value")
    assert made.name == name and Secret.get_info(name.upper()) == made


def test_secret_is_updated(name):
    made = Secret.create(name, "s3cret-value", metadata={"owner": "me"})
    later = Secret.update(name, "s3cret-later")
    assert (later.secret_id, later.version, later.metadata) == (made.secret_id, 2, {"owner": "me"})
    assert later.created_at == made.created_at <= later.updated_at
    assert Secret.update(made.secret_id, "s3cret-last", metadata={"owner": "you"}).metadata == {"owner": "you"}


def test_secrets_are_listed_page_by_page():
    names = sorted(f"listed-{number}-{uuid.uuid4().hex}" for number in range(5))
    for name in names:
        Secret.create(name, "s3cret-value")
    try:
        pages, found = Secret.list(limit=2), []
        while pages.has_next:
            page = pages.next_items()
            assert len(page) <= 2
            found += [secret.name for secret in page]
        assert [name for name in found if name in names] == names and len(found) == len(set(found))
        first = Secret.list(limit=1)
        first.next_items()
        again = Secret.list(limit=1, next_token=first.next_token)
        assert again.next_items()[0].name == found[1]
    finally:
        for name in names:
            assert Secret.destroy(name) is True


def test_a_secret_is_destroyed(name):
    Secret.create(name, "s3cret-value")
    assert Secret.exists(name) is True
    assert Secret.destroy(name) is True and Secret.destroy(name) is False
    assert Secret.exists(name) is False
    with pytest.raises(SecretNotFoundException):
        Secret.get_info(name)
    with pytest.raises(SecretNotFoundException):
        Secret.update(name, "s3cret-value")


@pytest.mark.parametrize(
    "given, what",
    [
        ({"name": "sec_mine", "value": "v"}, "name"),
        ({"name": "two words", "value": "v"}, "name"),
        ({"name": "empty", "value": ""}, "value"),
        ({"name": "lines", "value": "s3cret\nlines"}, "value"),
        ({"name": "long", "value": "v", "metadata": {"k": "v" * 2000}}, "metadata"),
    ],
)
def test_invalid_secrets_are_refused(given, what):
    with pytest.raises(SecretException, match=what) as caught:
        Secret.create(**given)
    assert "s3cret" not in str(caught.value)


def test_duplicate_name_is_refused(name):
    Secret.create(name, "s3cret-value")
    with pytest.raises(SecretException, match="already"):
        Secret.create(name, "s3cret-other")


def test_rules_name_secrets(name):
    Secret.create(name, "s3cret-value")
    headers = {"Authorization": f"Bearer {Secret.fill(name)}", "X-Plain": "plain"}
    network = {
        "rules": {"api.example.com": [{"transform": {"headers": headers}}], "*.example.org": []},
        "allow_out": lambda context: [*context.rules, "pypi.org"],
        "deny_out": lambda context: [context.all_traffic],
    }
    with Sandbox.create(network=network) as sandbox:
        info = sandbox.get_info().network
        assert sorted(info["allow_out"]) == ["*.example.org", "api.example.com", "pypi.org"]
        assert info["deny_out"] == ["0.0.0.0/0"]
        shown = info["rules"]["api.example.com"][0]["transform"]["headers"]
        assert shown == {"authorization": f"…{Secret.fill(name)}", "x-plain": "…"}
        # Code has neither, and trusts the certificates used to terminate TLS to the host.
        assert "s3cret" not in sandbox.commands.run("env; cat /dev/belljar/*").stdout
        sandbox.update_network({"rules": {"api.example.com": [{"transform": {"headers": {"X-Plain": "other"}}}]}})
        sandbox.update_network({})
        sandbox.update_network({"rules": {"api.example.com": [{"transform": {"headers": {"X-Plain": "again"}}}]}})
        with pytest.raises(SandboxException, match="create another sandbox"):
            sandbox.update_network({"rules": {"other.example.com": [{"transform": {"headers": {"X-Plain": "other"}}}]}})


@pytest.mark.parametrize(
    "headers, what",
    [
        ({"Authorization": Secret.fill("none-such")}, "none-such"),
        ({"Authorization": "${e2b.identity.tokens.aws}"}, "does not offer"),
        ({"Host": "other.example"}, "header"),
        ({"X-Lines": "two\nlines"}, "value"),
    ],
)
def test_invalid_rules_are_refused(headers, what):
    with pytest.raises(SandboxException, match=what):
        Sandbox.create(network={"rules": {"api.example.com": [{"transform": {"headers": headers}}]}})


def test_addresses_include_all_ports():
    network = {"allow_out": ["1.1.1.1", "8.8.8.0/24"], "deny_out": ["0.0.0.0/0"]}
    with Sandbox.create(network=network) as sandbox:
        assert sandbox.get_info().network["allow_out"] == ["1.1.1.1/32", "8.8.8.0/24"]


async def test_the_asynchronous_client_keeps_secrets(name):
    made = await AsyncSecret.create(name, "s3cret-value")
    assert await AsyncSecret.get_info(name) == made
    assert (await AsyncSecret.update(name, "s3cret-later")).version == 2
    assert name in [secret.name for secret in await AsyncSecret.list().next_items()]
    assert await AsyncSecret.exists(name) and await AsyncSecret.destroy(name) and not await AsyncSecret.exists(name)
