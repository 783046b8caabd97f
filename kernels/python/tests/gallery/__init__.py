"""Documented snippets, and their expected results."""
