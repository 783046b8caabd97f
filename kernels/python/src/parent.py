"""The parent of warm kernels: prepared before any user is known, and never runs user code.

The host sends one message for each fork over a socket that preserves message boundaries: JSON, with descriptors. The child
reports over its control socket that it has started, the guest sends the sandbox's settings at once, and with the first code what
differs in its context (kernels/PROTOCOL.md, Warm kernels).
"""

import base64
import gc
import json
import os
import select
import signal
import socket
import sys

from _belljar import enter
from _belljar.start import report_failure
from _belljar.warm import Failed, check_packages, prepare, rehearse, reseed, settle

MAX_REQUEST = 64 * 1024
MAX_DESCRIPTORS = 16
MAX_SETTINGS = 16 << 20
# How long a child waits for its context before it continues its preparation, in seconds.
PREPARE_TIMEOUT = 0.005


def main():
    """Serves fork requests; never returns."""
    setup = json.loads(os.environ.pop("BELLJAR_WARM"))
    sock = socket.socket(fileno=setup["fd"])
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.path.pop(0)
    sys.argv = [""]
    calls = enter.Calls(setup["calls"])
    try:
        kernel = prepare(setup["imports"])
    except Failed as error:
        sock.send(json.dumps({"failed": str(error)[:4096]}).encode())
        os._exit(1)
    sys.path.insert(0, "")
    threads = _threads(setup["status"])
    if threads != 1:
        # A lock held by another thread would stay locked forever in a child.
        sock.send(json.dumps({"failed": f"the imports have started {threads - 1} threads"}).encode())
        os._exit(1)
    enter.use_huge_pages(calls)
    # What is left of a child that is killed on its way is reaped here, as its end is ignored.
    calls.call("prctl", enter.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    native = enter.load_native(calls, setup["entry"])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    sock.send(json.dumps({"version": sys.version.split()[0]}).encode())
    while True:
        data, fds, _, _ = socket.recv_fds(sock, MAX_REQUEST, MAX_DESCRIPTORS)
        if not data:
            os._exit(0)
        request = json.loads(data)
        if request["filter"] is not None:
            request["filter"] = base64.b64decode(request["filter"])
        named = dict(zip(request["descriptors"], fds, strict=False))
        groups = fds[len(request["descriptors"]) :]
        named["groups"], named["late_groups"] = groups[: request["groups"]], groups[request["groups"] :]
        entry = None
        try:
            entry = enter.Entry(calls, request, named)
            is_child = entry.fork(native)
        except BaseException as error:
            message = f"the warm interpreter could not enter the sandbox: {type(error).__name__}: {error}"
            if entry is not None and entry.is_forked:
                report_failure(named["control"], message)
            _fail(named["control"], message)
            is_child = False
        if is_child:
            _serve_child(kernel, calls, named["control"])
        for fd in fds:
            os.close(fd)
        # The host replaces a parent that does not answer.
        sock.send(b"1")


def _threads(fd):
    """Returns the number of threads from an open status file; /proc is not available here."""
    text = os.pread(fd, 8192, 0).decode()
    os.close(fd)
    return int(text.split("Threads:", 1)[1].split(None, 1)[0])


def _serve_child(kernel, calls, control):
    """Runs in the child; never returns."""
    try:
        sock = socket.socket(fileno=control)
        body = json.dumps({"op": "born", "pid": os.getpid()}).encode()
        sock.sendall(len(body).to_bytes(4, "big") + body)
        frame, passed = _receive_settings(sock)
        enter.apply_settings(calls, frame, passed)
        if not select.select([sock], [], [], PREPARE_TIMEOUT)[0]:
            # No context waits yet: copies pages now, not with the first execution.
            rehearse(kernel, 2)
            gc.freeze()
        reseed()
        settle(*_place(frame))
        sock.detach()
        kernel.connect(control)
        control = kernel.wire.fileno()
        env, cwd = _place(kernel.wire.receive())
        if (env, cwd) != (None, None):
            settle(env, cwd)
        check_packages()
    except Failed as error:
        report_failure(control, str(error))
    except BaseException as error:
        report_failure(control, f"the warm interpreter could not enter the sandbox: {type(error).__name__}: {error}")
    kernel.serve()
    os._exit(1)


def _place(frame):
    """Returns the environment and the directory of a frame, None where it has none."""
    env, cwd = frame.get("env"), frame.get("cwd")
    if env is not None:
        env = dict(os.fsdecode(base64.b64decode(pair)).split("=", 1) for pair in env)
        for name in ("BELLJAR_KERNEL_FD", "BELLJAR_KERNEL_LANGUAGE"):
            env.pop(name, None)
    return env, None if cwd is None else os.fsdecode(base64.b64decode(cwd))


def _receive_settings(sock):
    data, passed, _, _ = socket.recv_fds(sock, 4, 1)
    while len(data) < 4:
        data += _more(sock, 4 - len(data))
    length = int.from_bytes(data, "big")
    if length > MAX_SETTINGS:
        raise ValueError("the settings are too long")
    body = b""
    while len(body) < length:
        body += _more(sock, length - len(body))
    return json.loads(body), passed


def _more(sock, length):
    data = sock.recv(length)
    if not data:
        os._exit(0)
    return data


def _fail(control, message):
    """Reports from the parent, which goes on."""
    body = json.dumps({"op": "failed", "message": message[:16000]}).encode()
    try:
        socket.socket(fileno=os.dup(control)).sendall(len(body).to_bytes(4, "big") + body)
    except OSError:
        pass
