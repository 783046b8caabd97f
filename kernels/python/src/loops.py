"""The event loop of a context, created when code asks for it: most never do, and its descriptors take time."""

import sys
import threading


def is_on_demand(kernel):
    """Makes `asyncio.get_event_loop()` return the kernel's loop; returns whether that is possible with the loop policy in use."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return True
    # Policies are deprecated since 3.14.
    if sys.version_info >= (3, 14):
        return False
    policy = asyncio.get_event_loop_policy()
    if type(policy) is asyncio.DefaultEventLoopPolicy:
        asyncio.set_event_loop_policy(_policy(asyncio, kernel))
        return True
    return getattr(policy, "is_of_kernel", False)


def _policy(asyncio, kernel):
    class Policy(asyncio.DefaultEventLoopPolicy):
        is_of_kernel = True

        def get_event_loop(self):
            """Returns the loop that code has set, else the kernel's."""
            if self._local._loop is None and threading.current_thread() is threading.main_thread():
                kernel.event_loop()
            return super().get_event_loop()

    return Policy()
