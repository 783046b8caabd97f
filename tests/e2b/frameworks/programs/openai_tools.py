"""A model with two tools on E2B's client: running code, and a command. Nothing in this program is specific to Belljar."""

import json

from e2b_code_interpreter import Sandbox
from openai import OpenAI

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "execute_python",
            "description": "Runs Python in a Jupyter notebook cell and returns the result",
            "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "run_command",
            "description": "Runs a command in a shell and returns its output",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
        },
    },
]


def call(sandbox: Sandbox, name: str, arguments: dict[str, str]) -> str:
    if name == "execute_python":
        execution = sandbox.run_code(arguments["code"])
        if execution.error:
            return f"{execution.error.name}: {execution.error.value}"
        return execution.text or "".join(execution.logs.stdout)
    return sandbox.commands.run(arguments["command"]).stdout


client = OpenAI()
messages = [
    {"role": "system", "content": "Use the tools to answer."},
    {"role": "user", "content": "What is the mean of the numbers 3 to 11, and how many lines has the file with them?"},
]
with Sandbox.create() as sandbox:
    while True:
        completion = client.chat.completions.create(model="recorded", messages=messages, tools=TOOLS)
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            break
        for asked in message.tool_calls:
            result = call(sandbox, asked.function.name, json.loads(asked.function.arguments))
            messages.append({"role": "tool", "tool_call_id": asked.id, "content": result})
print(message.content)
