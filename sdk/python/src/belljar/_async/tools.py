"""Executors of models' tool calls: a call as its vendor's interface has it, to its result in the same form."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Literal, Mapping, Optional, Tuple

from .. import _calls as calls
from .._calls import tools as forms
from .._calls._call import Duration
from ..errors import InvalidArgumentException, SandboxException
from ..models import ExecutionResult

if TYPE_CHECKING:
    from .sandbox import AsyncSandbox


class AsyncTools:
    """Runs tool calls of models in a sandbox. A call that fails has a result that says so, for the model."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        """Created by a sandbox."""
        self._sandbox = sandbox

    async def definitions(self, vendor: Literal["anthropic", "openai", "mcp"]) -> List[Dict[str, Any]]:
        """Returns the server's tools, also the stored ones, as functions in the form of an interface."""
        found = await self._sandbox._transport.request(calls.tools.listing())
        return [forms.definition(tool, vendor) for tool in found if tool["name"] in forms.OFFERED or forms.is_stored(tool)]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Dict[str, Any]:
        """Calls a tool of `definitions` in this sandbox, and returns its result in the form of MCP."""
        return await self._mcp("default", name, arguments)

    async def anthropic(self, block: Any, *, max_characters: Optional[int] = None) -> Dict[str, Any]:
        """Runs a `tool_use` block, and returns a `tool_result` block.

        `bash_20250124` runs in one shell, which keeps its directory and variables; `text_editor_20250728` changes files; any
        other name is one of `definitions`. `max_characters`: that of the text editor's definition; 1 MiB if not given.
        """
        forms.check_limit(max_characters)
        call_id, name, arguments = forms.anthropic_call(block)
        try:
            if name == "bash":
                result = await self._mcp("claude", "bash", arguments)
            elif name in forms.TEXT_EDITORS:
                result = forms.text_result((await self._edit(arguments))[0], max_characters)
            elif name in forms.CODE_EXECUTION:
                raise InvalidArgumentException(f"{name} is run by anthropic_code_execution", field="name")
            else:
                result = await self.call(name, arguments)
        except SandboxException as error:
            result = forms.error_result(error)
        return forms.anthropic_result(call_id, result)

    async def anthropic_code_execution(self, block: Any) -> Dict[str, Any]:
        """Runs a call of `code_execution`, `bash_code_execution` or `text_editor_code_execution`.

        Returns the block that Anthropic's own code execution would answer with. Files that code has made are not in it, as
        they have no ids there: they are in the sandbox.
        """
        call_id, name, arguments = forms.anthropic_call(block)
        kind = {"code_execution": "code_execution", "bash_code_execution": "bash_code_execution"}.get(name)
        try:
            if kind is not None:
                code = forms.required(arguments, "code" if name == "code_execution" else "command")
                done = await self._sandbox.run_code(code, "python" if name == "code_execution" else "bash")
                content = forms.code_execution(kind, done)
            elif name == "text_editor_code_execution":
                kind = name
                content = forms.edit_execution(arguments, await self._edit(arguments))
            else:
                raise InvalidArgumentException(f"{name!r} is no tool of code execution", field="name")
        except SandboxException as error:
            content = forms.execution_error(kind or "code_execution", error)
        return {"type": f"{kind or 'code_execution'}_tool_result", "tool_use_id": call_id, "content": content}

    async def openai(self, item: Any) -> Dict[str, Any]:
        """Runs a `function_call`, a `shell_call` or an `apply_patch_call` of Responses, or a tool call of Chat Completions.

        Returns the item or the message that answers it. Functions are those of `definitions`.
        """
        item = forms.plain(item)
        kind = item.get("type")
        if kind == "shell_call":
            return await self._shell(item)
        if kind == "apply_patch_call":
            return await self._patch(item)
        call_id, name, text = forms.openai_call(item)
        try:
            result = await self.call(name, forms.parsed_arguments(text))
        except SandboxException as error:
            result = forms.error_result(error)
        return forms.openai_result(item, call_id, result)

    def langchain(self, name: str = "run_code", description: str = forms.DESCRIPTION, language: str = "python") -> Any:
        """Returns a tool of LangChain that runs code, made with its decorator `tool`. Needs `langchain-core`."""
        sandbox = self._sandbox

        async def run(code: str) -> str:
            try:
                return forms.code_text(await sandbox.run_code(code, language))
            except SandboxException as error:
                return forms.bounded(f"Error: {error}")

        decorate: Callable[..., Any] = importlib.import_module("langchain_core.tools").tool
        return decorate(name, description=description)(run)

    async def _mcp(self, profile: str, name: str, arguments: Mapping[str, Any]) -> Dict[str, Any]:
        """Calls a tool of a profile of the server."""
        call = calls.tools.call(profile, name, arguments, self._sandbox.sandbox_id)
        return await self._sandbox._transport.request(call)

    async def _shell(self, item: Mapping[str, Any]) -> Dict[str, Any]:
        action, commands = forms.shell_commands(item)
        output: List[Dict[str, Any]] = []
        most: Optional[int] = None
        for command in commands:
            try:
                timeout, most = forms.shell_limits(action)
                done = await self._sandbox.commands.run(forms.shell_command(command), timeout=timeout, check=False)
                output.append(forms.shell_output(done, most))
            except SandboxException as error:
                output.append(forms.shell_error(error))
        return forms.shell_result(item, output, most)

    async def _patch(self, item: Mapping[str, Any]) -> Dict[str, Any]:
        try:
            result = await self._mcp("codex", "apply_patch", {"input": forms.patch(item)})
        except SandboxException as error:
            result = forms.error_result(error)
        return forms.patch_result(item, result)

    async def _edit(self, arguments: Mapping[str, Any]) -> Tuple[str, Dict[str, Any]]:
        """Runs a command of the text editor. Returns what it tells the model, and what code execution tells of it."""
        command, path = forms.required(arguments, "command"), forms.required(arguments, "path")
        files = self._sandbox.files
        if command == "view":
            if (await files.get_info(path)).is_dir:
                page = calls.files.page(files._place, path, 2, None, None)
                entries, cursor = await self._sandbox._transport.request(page)
                return forms.listed(path, entries, cursor is None)
            return forms.viewed(await self._read(path), arguments.get("view_range"))
        if command == "create":
            text = forms.required(arguments, "file_text")
            is_update = await files.exists(path)
            await files.write(path, text)
            return f"File created successfully at: {path}", {"is_file_update": is_update}
        if command == "str_replace":
            old, new = forms.required(arguments, "old_str"), forms.required(arguments, "new_str", "")
            text, told = forms.replaced(path, await self._read(path), old, new)
        elif command == "insert":
            new = forms.required(arguments, "insert_text")
            text, told = forms.inserted(await self._read(path), arguments.get("insert_line"), new)
        else:
            raise InvalidArgumentException(f"{command!r} is no command of the text editor", field="command")
        await files.write(path, text)
        return f"The file {path} has been edited successfully.", told

    async def _read(self, path: str) -> str:
        """Reads a file of text. Its length is bounded while it is read, as code may change it."""
        data = await self._sandbox.files.read(path, "bytes", end=forms.MAX_LENGTH + 1)
        return forms.file_text(path, data)


class AsyncSandboxProvider:
    """A sandbox for one agent, behind three methods: `create_sandbox`, `execute` and `cleanup`.

    As a context manager it cleans up at the end.
    """

    def __init__(self, **options: Any) -> None:
        """Does nothing yet. `options`: those of `AsyncSandbox.create`."""
        self._options = options
        self._sandbox: Optional[AsyncSandbox] = None

    async def create_sandbox(self, image: Optional[str] = None, **options: Any) -> AsyncSandbox:
        """Creates the sandbox and ends the previous one. `image`: a template, or `image:NAME` for a pulled image."""
        from .sandbox import AsyncSandbox

        await self.cleanup()
        self._sandbox = await AsyncSandbox.create(image, **{**self._options, **options})
        return self._sandbox

    async def execute(self, code: str, timeout: Optional[Duration] = None, *, language: str = "python") -> ExecutionResult:
        """Runs code, and creates the sandbox if there is none. Variables are kept for the next call."""
        sandbox = self._sandbox or await self.create_sandbox()
        done = await sandbox.run_code(code, language, timeout=timeout)
        return ExecutionResult.of(done)

    async def cleanup(self) -> None:
        """Ends the sandbox, if there is one."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.kill()
            await sandbox.close()

    async def __aenter__(self) -> AsyncSandboxProvider:
        """Returns itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cleans up."""
        await self.cleanup()
