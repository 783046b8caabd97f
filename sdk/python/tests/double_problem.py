"""An error response of the test double."""

from __future__ import annotations

from typing import Optional


class Problem(Exception):
    """An error response."""

    def __init__(self, status: int, code: str, detail: str = "it failed", field: Optional[str] = None) -> None:
        super().__init__(detail)
        self.status = status
        self.body = {"type": code, "title": code, "status": status, "code": code, "detail": detail, "field": field}
