"""Runs schemathesis over the OpenAPI document of a real server, with the keys of two tenants and an administrator's.

usage: run.py --belljar PROGRAM [--seconds-each 200 | --examples N] [--seed N]

There are three runs: each tenant attacks the resources of the other, and one runs as an administrator. No response may be a 5xx or
differ from the document, and no tenant may see or change resources of the other. With a seed and a number of examples the
requests are the same each time, regardless of the speed of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List

import requests

HERE = Path(__file__).resolve().parent
START_SECONDS = 60.0
QUOTAS = {"sandboxes": 8, "memory_bytes": 4 << 30, "disk_bytes": 16 << 30}


class Service:
    """A server with its own home directory, until it is closed."""

    def __init__(self, program: str) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="belljar-schemathesis-"))
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.log = self.home / "server.log"
        settings = ["sandboxes.share_host_tree=true", "server.max_failed_attempts=1000000"]
        # Volumes allocate their size on disk immediately.
        settings += ["sandboxes.volumes.size=16m", "sandboxes.volumes.max_bytes=256m"]
        command = [program, "serve", "--listen", self.url[len("http://") :], "--on-exit", "end"]
        command += [word for setting in settings for word in ("--set", setting)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BELLJAR_")}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env={**environment, "BELLJAR_HOME": str(self.home)}, stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            key = re.search(r"\bbj_[0-9a-f]{64}\b", self.output())
            if key is not None and self._is_ready():
                self.key = key[0]
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                sys.exit(f"the server did not start:\n{self.output()}")
            time.sleep(0.05)

    def output(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def is_running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def remove(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)

    def _is_ready(self) -> bool:
        try:
            return requests.get(f"{self.url}/ready", timeout=5).status_code == 200
        except requests.RequestException:
            return False


class Tenant:
    """A tenant with a key, and resources that nobody else may see or change. All of them contain `mark`."""

    def __init__(self, service: Service, name: str, role: str = "user") -> None:
        self.role = role
        self.url, self.name, self.mark = service.url, name, f"mark-{secrets.token_hex(8)}"
        self.admin = {"Authorization": f"Bearer {service.key}"}
        body = {"name": f"{self.mark}-key", "tenant": name, "role": role, "quotas": QUOTAS}
        made = self._call("POST", "/v1/keys", self.admin, body)
        self.key, self.key_id = made["key"], made["id"]
        self.headers = {"Authorization": f"Bearer {self.key}"}
        self.sandbox = self.template = self.volume = ""

    def create_resources(self) -> None:
        """Creates resources that the other tenant must not reach."""
        body = {
            "name": self.mark,
            "timeout": 3600,
            "labels": {"mark": self.mark},
            "env": {"MARK": self.mark},
            "files": [{"path": "marked.txt", "content": self.mark}],
        }
        self.sandbox = self.call("POST", "/v1/sandboxes", body)["id"]
        self.volume = self.call("POST", "/v1/volumes", {"name": self.mark})["id"]
        content = f"{self.url}/v1/volumes/{self.volume}/files/content?path=marked.txt"
        assert requests.put(content, data=self.mark.encode(), headers=self.headers, timeout=60).ok
        of = f"/v1/sandboxes/{self.sandbox}"
        self.call("POST", f"{of}/processes", {"command": f"echo {self.mark}; exec sleep 3600"})
        self.call("POST", f"{of}/ports", {"port": 8000})
        self.template = self.call("POST", f"{of}/snapshot", {"name": f"{self.mark}-t", "note": self.mark})["id"]

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return self._call(method, path, self.headers, body)

    def _call(self, method: str, path: str, headers: Dict[str, str], body: Any) -> Any:
        answer = requests.request(method, f"{self.url}{path}", json=body, headers=headers, timeout=60)
        assert answer.ok, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def snapshot(self) -> Dict[str, Any]:
        """Returns everything that the other tenant could have changed."""
        of = f"/v1/sandboxes/{self.sandbox}"
        info = self.call("GET", of)
        info.pop("isolation", None)
        processes = self.call("GET", f"{of}/processes")["processes"]
        files = self.call("GET", f"{of}/files?path=.")
        for entry in files["entries"]:
            entry.pop("accessed_at", None)
        content = requests.get(f"{self.url}{of}/files/content?path=marked.txt", headers=self.headers, timeout=60).text
        ports = self.call("GET", f"{of}/ports")["ports"]
        templates = [one["id"] for one in self.call("GET", "/v1/templates")["templates"]]
        sessions = self.call("GET", f"{of}/sessions")
        volume = [self.call("GET", f"/v1/volumes/{self.volume}{rest}") for rest in ("", "/files?path=/&depth=9")]
        return {
            "info": info,
            "processes": processes,
            "files": files,
            "content": content,
            "ports": ports,
            "sessions": sessions,
            "volume": volume,
            "has its template": self.template in templates,
        }

    def clear(self) -> None:
        """Removes everything that fuzzing has created."""
        for _ in range(100):
            page = self.call("GET", "/v1/sandboxes?limit=100")["sandboxes"]
            rest = [one["id"] for one in page if one["id"] != self.sandbox]
            if not rest:
                break
            for sandbox in rest:
                requests.delete(f"{self.url}/v1/sandboxes/{sandbox}", headers=self.headers, timeout=60)
        for volume in self.call("GET", "/v1/volumes")["volumes"]:
            if volume["id"] != self.volume and volume["tenant"] == self.name:
                requests.delete(f"{self.url}/v1/volumes/{volume['id']}", headers=self.headers, timeout=60)
        for template in self.call("GET", "/v1/templates")["templates"]:
            if template["kind"] == "snapshot" and template["id"] != self.template:
                # Those of other keys of the tenant stay.
                requests.delete(f"{self.url}/v1/templates/{template['id']}", headers=self.headers, timeout=60)


# The checks of every run; the last three, and those of sequences, are in `hooks.py`.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
    "missing_required_header",
    "nothing_of_another_tenant",
    "foreign_is_as_missing",
    "problems_are_problems",
)
STATEFUL_CHECKS = ("removed_is_gone",)
# Phases with their share of the time: independent requests, and then sequences of dependent ones.
PHASES = (("examples,coverage,fuzzing", 0.7), ("stateful", 0.3))


def attack(service: Service, attacker: Tenant, victim: Tenant, given: argparse.Namespace) -> List[str]:
    """Runs all phases; returns the faults found."""
    faults = []
    # An administrator may see and change resources of all tenants.
    admin = attacker.role == "admin"
    foreign = {} if admin else {"sandbox": victim.sandbox, "template": victim.template, "volume": victim.volume}
    marks = [] if admin else [victim.mark, victim.sandbox, victim.volume, victim.key_id, victim.key]
    for phases, share in PHASES:
        with tempfile.TemporaryDirectory(prefix="belljar-schemathesis-") as directory:
            answers = Path(directory, "answers.json")
            world = {
                "url": service.url,
                "key": attacker.key,
                "key_id": attacker.key_id,
                "foreign": foreign,
                "marks": marks,
                "follows": phases == "stateful",
                "answers": str(answers),
            }
            command = [str(Path(sys.executable).parent / "schemathesis"), "--config-file", str(HERE / "schemathesis.toml")]
            command += ["run", f"{service.url}/openapi.json", "--header", f"Authorization: Bearer {attacker.key}"]
            checks = [*CHECKS, *STATEFUL_CHECKS] if phases == "stateful" else CHECKS
            command += ["--checks", ",".join(checks), "--phases", phases, "--seed", str(given.seed)]
            if given.examples is None:
                command += ["--max-time", str(max(int(given.seconds_each * share), 1))]
            else:
                # A sequence has several steps, few of which concern sandboxes.
                command += ["--max-examples", str(given.examples * (5 if phases == "stateful" else 1))]
            environment = {**os.environ, "BELLJAR_FUZZ": json.dumps(world), "SCHEMATHESIS_HOOKS": "hooks"}
            done = subprocess.run(command, cwd=directory, env={**environment, "PYTHONPATH": str(HERE)})
            counts = json.loads(answers.read_text("utf-8")) if answers.exists() else {}
        print(f"responses by status: {dict(sorted(counts.items()))}", flush=True)
        if done.returncode != 0:
            faults.append(f"{phases}: schemathesis reported failures")
        if not any(status.startswith("2") for status in counts):
            faults.append(f"{phases}: no request succeeded, so nothing was tested")
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--belljar", required=True, help="path of the belljar binary to test")
    parser.add_argument("--seconds-each", type=int, default=200, help="duration of each of the three runs, in seconds (default: 200)")
    parser.add_argument("--examples", type=int, help="number of examples per operation, instead of a duration")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31), help="seed, to reproduce a failure")
    given = parser.parse_args()
    bound = f"{given.seconds_each} s" if given.examples is None else f"{given.examples} examples for each operation"
    print(f"schemathesis: --seed {given.seed}, three times {bound}", flush=True)
    service = Service(os.path.abspath(given.belljar))
    faults: List[str] = []
    try:
        for one, role, two in (("one", "user", "two"), ("two", "user", "one"), ("one", "admin", "two")):
            # An attacker may remove its own resources, so a new victim is created each time.
            attacker, victim = Tenant(service, one, role), Tenant(service, two)
            victim.create_resources()
            what = f"{attacker.role} of tenant {attacker.name} against tenant {victim.name}"
            print(f"== {what}", flush=True)
            before = None if role == "admin" else victim.snapshot()
            found = attack(service, attacker, victim, given)
            faults += [f"{what}: {fault}" for fault in found]
            if not service.is_running():
                sys.exit(f"the server has exited:\n{service.output()[-4000:]}")
            after = None if role == "admin" else victim.snapshot()
            if before != after:
                faults.append(f"{what}: resources of the victim have changed:\n{before}\n{after}")
            attacker.call("GET", "/v1/me")
            attacker.clear()
        panics = [line for line in service.output().splitlines() if "panicked" in line]
        faults += [f"the server's log: {line}" for line in panics]
    finally:
        service.close()
        if faults:
            print(f"the server's home is kept: {service.home}", flush=True)
        else:
            service.remove()
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
