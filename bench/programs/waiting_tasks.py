"""Lets tasks wait for each other in one thread."""

import asyncio
from concurrent.futures import ThreadPoolExecutor


async def worker(name, queue, done):
    while True:
        number = await queue.get()
        done.append((name, number * number))
        queue.task_done()
        await asyncio.sleep(0)


async def main():
    queue, done = asyncio.Queue(), []
    workers = [asyncio.create_task(worker(name, queue, done)) for name in "ab"]
    for number in range(10):
        queue.put_nowait(number)
    await queue.join()
    for one in workers:
        one.cancel()
    ends = await asyncio.gather(*workers, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)
    return done


# In a separate thread, because the caller may already run an event loop.
with ThreadPoolExecutor(1) as pool:
    done = pool.submit(asyncio.run, main()).result()
assert [square for _, square in done] == [n * n for n in range(10)]
assert {name for name, _ in done} == {"a", "b"}
