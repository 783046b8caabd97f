"""Runs commands in many sandboxes concurrently, and fetches the results."""

import asyncio

from belljar import AsyncBelljar


async def square(client: AsyncBelljar, number: int) -> int:
    async with await client.sandboxes.create(timeout=60, labels={"example": "squares"}) as sbx:
        await sbx.commands.run(f"echo $(({number} * {number})) > result")
        return int(await sbx.files.read("result"))


async def main() -> None:
    async with AsyncBelljar() as client:
        print(await asyncio.gather(*(square(client, number) for number in range(5))))


if __name__ == "__main__":
    asyncio.run(main())
