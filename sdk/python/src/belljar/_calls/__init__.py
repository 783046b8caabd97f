"""The requests of the service, built and read in one place for the synchronous and the asynchronous client.

A function here takes what the caller gave, checks what only a client can check, and makes a `Call`. Nothing here does any
input or output.
"""

from . import admin, code, commands, files, sandboxes, tools
from ._call import Call

__all__ = ["Call", "admin", "code", "commands", "files", "sandboxes", "tools"]
