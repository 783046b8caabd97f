"""Contexts of the test double. They run no code: the code is a JSON list of events and their data."""

from __future__ import annotations

import json
import threading
from typing import Any, Callable, Dict, List, Optional

from double_problem import Problem

LANGUAGES = ("python", "javascript", "typescript", "bash")


class Contexts:
    """Lists the contexts of a sandbox."""

    def __init__(self) -> None:
        self.all: Dict[str, Dict[str, Any]] = {}
        self.made = 0
        self.executions = 0
        self.last: Dict[str, Any] = {}
        self.answers: List[Optional[str]] = []
        self.answered = threading.Condition()

    def make(self, body: Dict[str, Any], name: Optional[str] = None) -> Dict[str, Any]:
        language = body.get("language") or "python"
        if language not in LANGUAGES:
            raise Problem(400, "invalid_field", "there is no kernel for it", "language")
        if name is None:
            self.made += 1
            name = f"c{self.made}"
        info = {"id": name, "language": language, "cwd": body.get("cwd") or "/home/user", "state": "idle", "pid": 7}
        self.all[name] = {**info, "executions": 0, "idle_ms": 1, "version": "3", "start": "plain", "generation": 1}
        return self.all[name]

    def find(self, name: str) -> Dict[str, Any]:
        if name not in self.all:
            raise Problem(404, "context_not_found", "there is no such context")
        return self.all[name]

    def route(self, verb: str, rest: List[str], body: Dict[str, Any], reply: Callable[..., None]) -> None:
        if not rest:
            return reply(201, self.make(body)) if verb == "POST" else reply(200, {"contexts": list(self.all.values())})
        context = self.find(rest[0])
        if verb == "DELETE":
            del self.all[rest[0]]
            return reply(204)
        if rest[1] == "restart":
            context["generation"] += 1
            return reply(200, context)
        if rest[1] == "interrupt":
            return reply(200, {"interrupted": context["state"] == "busy"})
        with self.answered:
            self.answers.append(None if body.get("end_of_file") else body["value"])
            self.answered.notify_all()
        return reply(204)

    def run(self, body: Dict[str, Any], events: Optional[Callable[[], Callable[[str, Any], None]]]) -> Dict[str, Any]:
        """Plays the events in the code, and returns the complete outcome."""
        self.last = body
        name = body.get("context") or body.get("language") or "python"
        context = self.find(name) if body.get("context") or name in self.all else self.make({"language": name}, name)
        script = json.loads(body["code"] or "[]")
        self.executions += 1
        context["executions"] += 1
        head = {"execution": self.executions, "context": context, "count": context["executions"]}
        emit = events() if events else lambda name, data: None
        emit("started", head)
        printed, results, error = {"stdout": "", "stderr": ""}, [], None
        end: Dict[str, Any] = {"status": "ok", "state": "preserved", "wall_ms": 1.5, "cpu_ms": 0.5}
        for kind, data in script:
            if kind in printed:
                emit(kind, {"offset": len(printed[kind].encode()), "encoding": "utf-8", "data": data})
                printed[kind] += data
            elif kind == "ended":
                end.update(data)
            elif kind == "break":
                return {}
            else:
                emit(kind, data)
                if kind == "result":
                    results.append(data)
                elif kind == "error":
                    error = data
                elif kind == "input_requested":
                    with self.answered:
                        if self.answered.wait_for(lambda: bool(self.answers), 10):
                            emit("stdout", {"offset": 0, "encoding": "utf-8", "data": f"got {self.answers.pop(0)}\n"})
        emit("ended", end)
        streams = {key: {"encoding": "utf-8", "data": text, "bytes": len(text.encode())} for key, text in printed.items()}
        return {**head, "context": name, **streams, "results": results, **({"error": error} if error else {}), **end}
