"""LangChain's standard tests of sandboxes with its published backend for E2B, and a deep agent that uses it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from deepagents import create_deep_agent
from e2b import AsyncSandbox, Sandbox
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_e2b import AsyncE2BSandbox, E2BSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests


@pytest.fixture(scope="module")
def made() -> Iterator[Sandbox]:
    with Sandbox.create(timeout=600) as sandbox:
        # E2B's template `base` has `python`; the machine's own tree may have `python3` alone.
        sandbox.commands.run("mkdir bin && ln -s $(command -v python3) bin/python && echo 'PATH=~/bin:$PATH' > .bash_profile")
        yield sandbox


class TestStandard(SandboxIntegrationTests):
    """Inherits the package's tests."""

    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls, made: Sandbox) -> E2BSandbox:
        return E2BSandbox(sandbox=made)


class Scripted(GenericFakeChatModel):
    """A model with scripted answers."""

    def bind_tools(self, *_: object, **__: object) -> Scripted:
        return self


def calls(name: str, **arguments: object) -> AIMessage:
    return AIMessage(content="", tool_calls=[{"name": name, "args": arguments, "id": name}])


SCRIPT = [
    calls("write_file", file_path="/home/user/squares.py", content="print([n * n for n in range(5)])\n"),
    calls("execute", command="python3 squares.py | tee squares.txt; exit 3"),
    calls("read_file", file_path="/home/user/squares.txt"),
    AIMessage(content="done"),
]
TASK = {"messages": [{"role": "user", "content": "Write down some squares."}]}


def check(done):
    messages = done["messages"]
    results = {message.name: message.content for message in messages if message.type == "tool"}
    assert "squares.py" in results["write_file"]
    assert "[0, 1, 4, 9, 16]" in results["execute"] and "exit code 3" in results["execute"]
    assert "[0, 1, 4, 9, 16]" in results["read_file"]
    assert messages[-1].content == "done"


def test_a_deep_agent():
    with Sandbox.create() as sandbox:
        agent = create_deep_agent(model=Scripted(messages=iter(SCRIPT)), backend=E2BSandbox(sandbox=sandbox))
        check(agent.invoke(TASK))


async def test_an_asynchronous_deep_agent():
    async with await AsyncSandbox.create() as sandbox:
        agent = create_deep_agent(model=Scripted(messages=iter(SCRIPT)), backend=AsyncE2BSandbox(sandbox=sandbox))
        check(await agent.ainvoke(TASK))
