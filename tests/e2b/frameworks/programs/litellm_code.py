"""LiteLLM's sandboxes with E2B, which it reaches without E2B's client. Nothing in this program is specific to Belljar."""

import asyncio
import os

import litellm

# It would print its list of models' providers.
litellm.suppress_debug_info = True
# LiteLLM takes the address of the control plane as an argument only.
WHERE = {"provider": "e2b", "api_base": f"https://api.{os.environ['E2B_DOMAIN']}"}


async def main() -> None:
    done = await litellm.acode_interpreter_tool(code="print(sum(range(10)))\n6 * 7", **WHERE)
    print(done.stdout.strip(), done.results[0]["text"], done.error)
    failed = await litellm.acode_interpreter_tool(code="1 / 0", **WHERE)
    print(failed.error["name"], failed.error["value"])
    container = await litellm.acreate_sandbox(**WHERE)
    await litellm.arun_code(container=container, code="x = 41", provider="e2b")
    again = await litellm.arun_code(container=container, code="x + 1", provider="e2b")
    print(again.results[0]["text"], again.execution_count)
    print(await litellm.adelete_sandbox(container=container, **WHERE), await litellm.adelete_sandbox(container=container, **WHERE))


asyncio.run(main())
