"""The certificates that HTTPS clients trust, read once, as each reading takes 20 ms."""

from __future__ import annotations

import ssl
from functools import cache


@cache
def certificates() -> ssl.SSLContext:
    """What httpx would read for each client."""
    import httpx

    return httpx.create_ssl_context()
