"""When a request is sent again, and after how long. No input or output here."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Optional

FIRST_DELAY = 0.2
"""Seconds before the first repetition, at most. It doubles with each."""

MAX_DELAY = 5.0
"""Seconds before any repetition, at most, unless the server asks for more."""

MAX_RETRY_AFTER = 30.0
"""If the server asks for a longer wait than this many seconds, the caller is told instead."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how fast."""

    max_retries: int
    first_delay: float = FIRST_DELAY
    max_delay: float = MAX_DELAY

    def delay(self, attempt: int, retry_after: Optional[float] = None) -> float:
        """Seconds to wait after the failed attempt number `attempt` (from 0); a random part keeps clients apart."""
        bound = min(self.max_delay, self.first_delay * 2.0**attempt)
        jittered = bound * random.uniform(0.5, 1.0)
        # Never before the server says; somewhat after, so that not all come at once.
        return jittered if retry_after is None else retry_after + min(jittered, bound)

    def after_status(self, attempt: int, status: int, retry_after: Optional[float], *, safe: bool) -> Optional[float]:
        """Seconds to wait before sending a request again that was answered with an error status, or None to give up.

        `safe`: the same request may be carried out twice.
        """
        if attempt >= self.max_retries or status not in (429, 502, 503):
            return None
        # With a time to wait the request was not begun, so that even one that is not safe may come again.
        if retry_after is not None and status != 502:
            return self.delay(attempt, retry_after) if retry_after <= MAX_RETRY_AFTER else None
        return self.delay(attempt) if safe else None

    def after_break(self, attempt: int, *, safe: bool, opened: bool) -> Optional[float]:
        """Seconds to wait before sending a request again whose connection failed, or None to give up.

        `opened`: there was a connection, so that the server may have begun.
        """
        if attempt >= self.max_retries or (opened and not safe):
            return None
        return self.delay(attempt)


def parse_retry_after(value: Optional[str], now: Optional[datetime] = None) -> Optional[float]:
    """Seconds from a `Retry-After` header: a number or a date. None if there is none that can be read."""
    if value is None:
        return None
    value = value.strip()
    try:
        seconds = float(value)
        return seconds if 0 <= seconds < float("inf") else None
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    when = when.replace(tzinfo=timezone.utc) if when.tzinfo is None else when
    return max(0.0, (when - (now or datetime.now(timezone.utc))).total_seconds())
