"""Retry policy: which requests are retried, and after what delay. No I/O here."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Optional

FIRST_DELAY = 0.2
"""Maximum delay before the first retry, in seconds. It doubles with each."""

MAX_DELAY = 5.0
"""Maximum delay before any retry, in seconds, unless the server asks for more."""

MAX_RETRY_AFTER = 30.0
"""If the server asks for a longer delay than this many seconds, an exception is raised instead."""


@dataclass(frozen=True)
class RetryPolicy:
    """Number of retries and delays."""

    max_retries: int
    first_delay: float = FIRST_DELAY
    max_delay: float = MAX_DELAY

    def delay(self, attempt: int, retry_after: Optional[float] = None) -> float:
        """Returns the delay in seconds after failed attempt number `attempt` (from 0), with random jitter."""
        bound = min(self.max_delay, self.first_delay * 2.0**attempt)
        jittered = bound * random.uniform(0.5, 1.0)
        # Never earlier than the server asks; slightly later, so that clients do not all retry together.
        return jittered if retry_after is None else retry_after + min(jittered, bound)

    def after_status(self, attempt: int, status: int, retry_after: Optional[float], *, safe: bool) -> Optional[float]:
        """Returns the delay in seconds before retrying a request that got an error status, or None to give up.

        `safe`: the request may be executed twice.
        """
        if attempt >= self.max_retries or status not in (429, 502, 503):
            return None
        # With `Retry-After` the request was not started, so even an unsafe one may be retried.
        if retry_after is not None and status != 502:
            return self.delay(attempt, retry_after) if retry_after <= MAX_RETRY_AFTER else None
        # A quota that is used up stays so, unless the server says when it will not be.
        return self.delay(attempt) if safe and status != 429 else None

    def after_break(self, attempt: int, *, safe: bool, opened: bool) -> Optional[float]:
        """Returns the delay in seconds before retrying a request whose connection failed, or None to give up.

        `opened`: the connection was open, so the server may have started the request.
        """
        if attempt >= self.max_retries or (opened and not safe):
            return None
        return self.delay(attempt)


def parse_retry_after(value: Optional[str], now: Optional[datetime] = None) -> Optional[float]:
    """Parses a `Retry-After` header (a number or a date) to seconds. None if missing or invalid."""
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
