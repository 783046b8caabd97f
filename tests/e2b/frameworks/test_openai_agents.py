"""openai-agents with its client for E2B: a session, and an agent with the tools of a sandbox and a scripted model."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from agents import ModelResponse, RunConfig, Runner, Usage
from agents.extensions.sandbox import E2BSandboxClient, E2BSandboxClientOptions, E2BSandboxType
from agents.models.interface import Model
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File
from agents.sandbox.snapshot import LocalSnapshotSpec
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

# The default root is /workspace, and only the home directory can be written.
ROOT = "/home/user/workspace"


def manifest() -> Manifest:
    return Manifest(root=ROOT, entries={"data/notes.txt": File(content=b"one\ntwo\n")})


def options(**more: Any) -> E2BSandboxClientOptions:
    return E2BSandboxClientOptions(sandbox_type=E2BSandboxType.E2B, timeout=600, **more)


async def test_a_session():
    session = await E2BSandboxClient().create(manifest=manifest(), options=options(exposed_ports=(8000,)))
    async with session:
        counted = await session.exec("wc -l < data/notes.txt")
        assert (counted.exit_code, counted.stdout) == (0, b"2\n")
        failed = await session.exec("echo why >&2; exit 7")
        assert (failed.exit_code, failed.stderr) == (7, b"why\n")
        await session.write("new/file.bin", io.BytesIO(bytes(range(256))))
        assert (await session.read("new/file.bin")).read() == bytes(range(256))
        assert await session.running()
        assert (await session.resolve_exposed_port(8000)).port
        terminal = await session.pty_exec_start("read word; echo got $word", tty=True, yield_time_s=0.2)
        assert terminal.process_id is not None
        said = await session.pty_write_stdin(session_id=terminal.process_id, chars="hello\n", yield_time_s=5)
        assert b"got hello" in said.output


@pytest.mark.parametrize("persistence", ["tar", "snapshot"])
async def test_a_workspace_that_is_kept(persistence: str, tmp_path: Path):
    client = E2BSandboxClient()
    kept = LocalSnapshotSpec(base_path=tmp_path)
    first = await client.create(manifest=manifest(), options=options(workspace_persistence=persistence), snapshot=kept)
    async with first:
        await first.write("kept.txt", io.BytesIO(b"kept"))
        before = first.state.sandbox_id
    second = await client.resume(first.state)
    async with second:
        assert (await second.read("kept.txt")).read() == b"kept"
        assert second.state.sandbox_id != before


class Scripted(Model):
    """A model with scripted answers, which keeps what it is given."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.inputs: list[Any] = []

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        self.inputs.append(input)
        return ModelResponse(output=[self.answers.pop(0)], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


def call(number: int, name: str, **arguments: Any) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(call_id=f"call_{number}", name=name, arguments=json.dumps(arguments), type="function_call")


async def test_an_agent():
    text = ResponseOutputText(text="done", type="output_text", annotations=[])
    model = Scripted(
        call(1, "exec_command", cmd="sort -r data/notes.txt | tee sorted.txt; exit 3"),
        call(2, "exec_command", cmd="cat", workdir="data", tty=True, yield_time_ms=100),
        ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message"),
    )
    agent = SandboxAgent(name="Sorter", model=model, instructions="Sort.", default_manifest=manifest())
    config = RunConfig(sandbox=SandboxRunConfig(client=E2BSandboxClient(), options=options()), tracing_disabled=True)
    result = await Runner.run(agent, "Sort the notes.", run_config=config)
    assert result.final_output == "done"
    outputs = [item["output"] for item in model.inputs[-1] if item.get("type") == "function_call_output"]
    assert "Process exited with code 3" in outputs[0] and "two\none\n" in outputs[0]
    assert "Process running with session ID" in outputs[1]
