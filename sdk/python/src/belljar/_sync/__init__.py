"""The synchronous client, made from `_async`."""
