"""A program that reaches a server by host names with TLS, configured by environment variables. PROXY resolves the names."""

import os
import tempfile

import httpx
from e2b import Template
from e2b_code_interpreter import Sandbox

proxy = os.environ["PROXY"]
with Sandbox.create(proxy=proxy, metadata={"by": "names"}) as sandbox:
    assert sandbox.sandbox_domain == os.environ["E2B_DOMAIN"]
    assert sandbox.commands.run("echo hello").stdout == "hello\n"
    background = sandbox.commands.run("read line; echo got $line", background=True, stdin=True)
    sandbox.commands.send_stdin(background.pid, "input\n")
    assert background.wait().stdout == "got input\n"
    sandbox.files.write("a.txt", "content")
    assert sandbox.files.read("a.txt") == "content"
    assert b"".join(sandbox.files.read("a.txt", format="stream")) == b"content"
    watcher = sandbox.files.watch_dir(".")
    sandbox.files.write("b.txt", "new")
    while not watcher.get_new_events():
        pass
    watcher.stop()
    assert sandbox.run_code("6 * 7").text == "42"
    assert sandbox.is_running()
    with httpx.Client(proxy=proxy) as client:
        for address in (sandbox.download_url("a.txt"), sandbox.download_url("a.txt", use_signature_expiration=60)):
            assert client.get(address).text == "content"
        server = sandbox.commands.run("exec python3 -m http.server 8125 --bind 127.0.0.1", background=True)
        address = f"https://{sandbox.get_host(8125)}/a.txt"
        while client.get(address).status_code != 200:
            pass
        assert client.get(address).text == "content"
        server.kill()
    sandbox.pause()
    again = Sandbox.connect(sandbox.sandbox_id, proxy=proxy)
    assert again.files.read("a.txt") == "content"
    assert [info.metadata for info in Sandbox.list(proxy=proxy).next_items()] == [{"by": "names"}]
with tempfile.TemporaryDirectory() as context:
    with open(f"{context}/a.txt", "w") as file:
        file.write("uploaded")
    Template.build(Template(file_context_path=context).from_base_image().copy("a.txt", "a.txt"), "by-names", proxy=proxy)
with Sandbox.create("by-names", proxy=proxy) as sandbox:
    assert sandbox.files.read("a.txt") == "uploaded"
print("done")
