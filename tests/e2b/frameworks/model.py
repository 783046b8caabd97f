"""Runs programs that are configured for Belljar by environment variables only, with recorded answers of a model."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from conftest import WAIT_TIMEOUT
from e2b import Sandbox

HERE = Path(__file__).parent


class Model:
    """Serves the chat completions of a file in order, and records the requests."""

    def __init__(self, recorded: str) -> None:
        answers = json.loads((HERE / "recorded" / recorded).read_text())
        self.requests: list[dict[str, object]] = []
        model = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                known = self.path == "/v1/chat/completions" and len(model.requests) < len(answers)
                body = json.dumps(answers[len(model.requests)] if known else {"error": {"message": "not recorded"}}).encode()
                model.requests.append(request)
                self.send_response(200 if known else 400)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def texts(self, role: str) -> list[str]:
        """Returns the messages of this role in the last request."""
        messages = self.requests[-1]["messages"]
        assert isinstance(messages, list)
        return [json.dumps(one["content"]) for one in messages if one["role"] == role]


def run(program: str, recorded: str) -> tuple[str, Model]:
    """Runs a program, which ends its sandboxes, and returns its output and its model."""
    model = Model(recorded)
    before = _sandboxes()
    try:
        environment = {**os.environ, "OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "none"}
        command = [sys.executable, str(HERE / "programs" / program)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_TIMEOUT)
        assert done.returncode == 0, done.stderr + done.stdout
        assert _sandboxes() <= before
        return done.stdout, model
    finally:
        model.close()


def _sandboxes() -> set[str]:
    return {info.sandbox_id for info in Sandbox.list().next_items()}
