"""Git repositories, with both clients."""

from __future__ import annotations

import textwrap
from typing import Any, Callable, List

import pytest

import belljar
from belljar import (
    CommandExitException,
    FileNotFoundException,
    GitAuthException,
    GitFileStatus,
    InvalidArgumentException,
)
from belljar._calls import git as calls
from belljar.models.git import parse_branches, parse_log, parse_status

AUTHOR = {"author_name": "Ada Lovelace", "author_email": "ada@example.org"}
PASSWORD = "p@ss:wörd/1'$HOME"

# A repository that only this user may read, over HTTP on loopback.
SERVER = """
import base64, functools, http.server, sys
wanted = "Basic " + base64.b64encode(sys.argv[1].encode()).decode()
class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        if self.headers.get("Authorization") == wanted:
            return super().do_GET()
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="r"')
        self.send_header("Content-Length", "0")
        self.end_headers()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=sys.argv[2]))
print(server.server_port, flush=True)
server.serve_forever()
"""


async def with_commit(sbx: Any, path: str = "repo") -> Any:
    await sbx.git.init(path, initial_branch="main")
    await sbx.files.write(f"{path}/a.txt", "1\n")
    await sbx.git.add(path)
    await sbx.git.commit(path, "First\n\nWith a body.", **AUTHOR)
    return sbx.git


async def has_git(sbx: Any) -> None:
    if (await sbx.commands.run("command -v git", check=False)).exit_code != 0:
        pytest.skip("SKIPPED: the sandbox has no git")


@pytest.mark.asyncio
async def test_a_repository(sbx: Any) -> None:
    await has_git(sbx)
    git = await with_commit(sbx)
    assert (await git.status("repo")).is_clean
    (commit,) = await git.log("repo")
    assert (commit.subject, commit.message) == ("First", "First\n\nWith a body.")
    assert (commit.author_name, commit.author_email) == tuple(AUTHOR.values()) and len(commit.hash) >= 40

    await sbx.files.write("repo/a.txt", "2\n")
    await sbx.files.write("repo/ü b.txt", "new")
    await git.add("repo", ["a.txt"])
    status = await git.status("repo")
    assert (status.current_branch, status.upstream, status.ahead, status.behind, status.detached) == ("main", None, 0, 0, False)
    assert status.file_status == (
        GitFileStatus("a.txt", "modified", "M", " ", True),
        GitFileStatus("ü b.txt", "untracked", "?", "?", False),
    )
    assert (status.is_clean, status.has_staged, status.has_untracked, status.has_conflicts) == (False, True, True, False)
    await git.reset("repo", paths=["a.txt"])
    assert not (await git.status("repo")).has_staged
    await git.restore("repo", ["a.txt"])
    assert await sbx.files.read("repo/a.txt") == "1\n"
    await git.add("repo")
    await git.commit("repo", "--second", **AUTHOR)
    await git.commit("repo", "third", allow_empty=True, **AUTHOR)
    assert [commit.subject for commit in await git.log("repo", max_count=2)] == ["third", "--second"]
    await git.reset("repo", "hard", "HEAD~2")
    assert not await sbx.files.exists("repo/ü b.txt")


@pytest.mark.asyncio
async def test_branches_and_settings(sbx: Any) -> None:
    await has_git(sbx)
    git = await with_commit(sbx)
    await git.create_branch("repo", "topic/one")
    branches = await git.branches("repo")
    assert (branches.branches, branches.current_branch) == (("main", "topic/one"), "topic/one")
    await git.configure_user("Grace", "grace@example.org")
    await git.commit("repo", "on the topic", allow_empty=True)
    assert [commit.author_name for commit in await git.log("repo", ref="main..topic/one")] == ["Grace"]
    await git.checkout_branch("repo", "main")
    with pytest.raises(CommandExitException, match="not fully merged"):
        await git.delete_branch("repo", "topic/one")
    await git.delete_branch("repo", "topic/one", force=True)
    assert (await git.branches("repo")).branches == ("main",)
    assert await git.get_config("pull.rebase", scope="local", path="repo") is None
    await git.set_config("pull.rebase", "true", scope="local", path="repo")
    assert await git.get_config("pull.rebase", scope="local", path="repo") == "true"
    assert await git.get_config("user.name") == "Grace"
    await git.checkout_branch("repo", (await git.log("repo"))[0].hash)
    assert (await git.status("repo")).detached and (await git.branches("repo")).current_branch is None


@pytest.mark.asyncio
async def test_remotes(sbx: Any) -> None:
    await has_git(sbx)
    git = await with_commit(sbx)
    await git.init("remote.git", bare=True, initial_branch="main")
    home = (await sbx.commands.run("pwd")).stdout.strip()
    await git.remote_add("repo", "origin", f"{home}/elsewhere.git")
    await git.remote_add("repo", "origin", f"{home}/remote.git", overwrite=True)
    assert await git.remote_get("repo", "origin") == f"{home}/remote.git"
    assert await git.remote_get("repo", "other") is None
    await git.push("repo", set_upstream=True)
    await git.clone(f"{home}/remote.git", "copy", branch="main", depth=1)
    await sbx.files.write("copy/b.txt", "b")
    await git.add("copy")
    await git.commit("copy", "Second", **AUTHOR)
    assert (await git.status("copy")).ahead == 1
    await git.push("copy")
    await git.pull("repo")
    status = await git.status("repo")
    assert await sbx.files.read("repo/b.txt") == "b" and (status.upstream, status.ahead, status.behind) == ("origin/main", 0, 0)
    with pytest.raises(CommandExitException) as failed:
        await git.clone(f"{home}/nowhere.git", "x")
    assert "does not exist" in failed.value.stderr and not isinstance(failed.value, GitAuthException)


@pytest.mark.asyncio
@pytest.mark.parametrize("in_url", [False, True])
async def test_credentials_are_used_and_not_stored(sbx: Any, real: None, in_url: bool) -> None:
    await has_git(sbx)
    git = await with_commit(sbx)
    await sbx.commands.run("mkdir www && git clone -q --bare repo www/private.git && git -C www/private.git update-server-info")
    await sbx.files.write("server.py", SERVER)
    server = await sbx.commands.run(["python3", "-u", "server.py", f"ada:{PASSWORD}", "www"], background=True)
    port = ""
    async for output in server:
        port += output.stdout or ""
        if "\n" in port:
            break
    url = f"http://127.0.0.1:{port.strip()}/private.git"
    with pytest.raises(GitAuthException) as refused:
        await git.clone(url, "refused")
    assert isinstance(refused.value, (CommandExitException, belljar.AuthenticationException)) and refused.value.stderr
    with pytest.raises(GitAuthException):
        await git.clone(url, "refused", username="ada", password="wrong")
    if in_url:
        quoted = "".join(f"%{byte:02X}" for byte in PASSWORD.encode())
        await git.clone(url.replace("//", f"//ada:{quoted}@"), "copy")
    else:
        await git.clone(url, "copy", username="ada", password=PASSWORD)
    assert await sbx.files.read("copy/a.txt") == "1\n" and await git.remote_get("copy", "origin") == url
    with pytest.raises(GitAuthException):
        await git.pull("copy")
    await git.pull("copy", username="ada", password=PASSWORD)
    # Neither in the configuration nor in any file.
    found = await sbx.commands.run(["grep", "-rlF", "-e", "wörd", "-e", "w%C3%B6rd", "."], check=False)
    assert (found.exit_code, found.stdout) == (1, "")
    assert await git.get_config("credential.helper") is None


@pytest.mark.asyncio
async def test_arguments_that_are_refused(sbx: Any) -> None:
    git = sbx.git
    attempts: List[Callable[[], Any]] = [
        lambda: git.clone("--upload-pack=x"),
        lambda: git.clone("https://example.org/r.git", password="p"),
        lambda: git.clone("ssh://git@example.org/r.git", username="u", password="p"),
        lambda: git.clone("https://example.org/r.git", username="u\nhost=other", password="p"),
        lambda: git.remote_add("r", "origin", "https://u:p@example.org/r.git"),
        lambda: git.create_branch("r", "-D"),
        lambda: git.add("r", "a.txt"),
        lambda: git.commit("r", "m", author_name="only"),
        lambda: git.set_config("a.b", "c", scope="system"),
        lambda: git.get_config("a.b", path="r"),
    ]
    for call in attempts:
        with pytest.raises(InvalidArgumentException) as refused:
            await call()
        assert refused.value.field and "p@" not in str(refused.value)


@pytest.mark.asyncio
async def test_a_sandbox_without_git(sbx: Any, real: None) -> None:
    with pytest.raises(FileNotFoundException, match="install it in its template"):
        await sbx.git.status("repo", envs={"PATH": "/nowhere"})


def test_urls() -> None:
    assert calls.split_url("https://u%40x:p%3A@example.org:8443/r.git?a=b") == ("https://example.org:8443/r.git?a=b", "u@x", "p:")
    assert calls.split_url("HTTPS://token@example.org/r") == ("https://example.org/r", "token", None)
    for url in ("git@example.org:a/b.git", "ssh://git@example.org/r", "/a/b.git", "https://example.org/a@b"):
        assert calls.split_url(url) == (url, None, None)
    arguments, variables = calls.credentials("https://example.org:8443/a/b.git", "u", "p")
    assert all(one.startswith("credential.https://example.org:8443.helper=") for one in arguments if one != "-c")
    assert "p" in variables.values() and not any("p" == one for one in arguments)
    assert calls.credentials("https://example.org", None, None) == ([], {})


def test_output_of_git() -> None:
    hashes = "0" * 40 + " " + "1" * 40
    text = textwrap.dedent(f"""\
        # branch.oid {"a" * 40}
        # branch.head main
        # branch.upstream origin/main
        # branch.ab +2 -1
        1 .M N... 100644 100644 100644 {hashes} with space
        1 A. N... 000000 100644 100644 {hashes} new
        2 R. N... 100644 100644 100644 {hashes} R100 now
        before
        u UU N... 100644 100644 100644 100644 {hashes} {"2" * 40} both
        ? un tracked
        """)
    status = parse_status(text.replace("\n", "\0"))
    assert (status.current_branch, status.upstream, status.ahead, status.behind) == ("main", "origin/main", 2, 1)
    assert [(file.name, file.status, file.staged, file.renamed_from) for file in status.file_status] == [
        ("with space", "modified", False, None),
        ("new", "added", True, None),
        ("now", "renamed", True, "before"),
        ("both", "conflict", False, None),
        ("un tracked", "untracked", False, None),
    ]
    assert status.has_conflicts and status.has_staged and not status.is_clean
    assert parse_status("# branch.oid (initial)\0# branch.head (detached)\0").detached
    for broken in ("1 M", "x y z"):
        with pytest.raises(belljar.ServerException):
            parse_status(broken)
    assert parse_branches(" refs/heads/a\n*refs/heads/b\n *(no branch)\n") == belljar.GitBranches(("a", "b"), "b")
    assert parse_log("") == []
    with pytest.raises(belljar.ServerException):
        parse_log("x")
