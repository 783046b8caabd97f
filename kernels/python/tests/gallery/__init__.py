"""Documented snippets, and what each must show."""
