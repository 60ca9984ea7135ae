"""A web access log generated from a seed: combined format, the same bytes for the same seed
everywhere."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

_STARTED_UNIX_S = 1_793_491_200  # 2026-11-01 00:00 UTC; any fixed time will do
_HOSTS = 5_000  # visitors of a small shop
_PATHS = (
    "/", "/login", "/logout", "/cart", "/checkout", "/search?q=blue+shoes", "/static/app.css",
    "/static/app.js", "/favicon.ico", "/robots.txt", "/api/v1/items", "/api/v1/orders",
    "/products/{}", "/products/{}/reviews", "/users/{}", "/images/{}.webp",
)  # fmt: skip
_PATH_WEIGHTS = (16, 3, 1, 4, 2, 5, 9, 9, 3, 1, 12, 6, 20, 4, 3, 22)
_METHODS, _METHOD_WEIGHTS = ("GET", "POST", "HEAD", "PUT"), (88, 9, 2, 1)
_STATUSES = (200, 304, 301, 404, 500, 403, 201, 503)
_STATUS_WEIGHTS = (840, 70, 30, 35, 5, 8, 10, 2)
_NO_BODY = (304, 301)
_AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:144.0) Gecko/20100101 Firefox/144.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/142.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 19_1 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148",
    "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
    "curl/8.16.0",
    "-",
)
_AGENT_WEIGHTS = (25, 40, 22, 8, 3, 2)
_REFERERS = ("-", "https://shop.example/", "https://shop.example/search?q=shoes")
# One line in this many is left by a port scanner: a request that is not HTTP.
_GARBAGE_ONE_IN = 1_000
_GARBAGE = r"\x16\x03\x01\x02"
_REQUESTS_PER_S = 40


def write(directory: Path, *, seed: int, records: int, files: int) -> None:
    """Write ``records`` lines to ``access-0.log`` … in ``directory``, evenly over ``files``."""
    lines = generate(seed, records)
    for number in range(files):
        share = records // files + (number < records % files)
        text = "".join(next(lines) for _ in range(share))
        (directory / f"access-{number}.log").write_text(text, encoding="utf-8")


def generate(seed: int, records: int) -> Iterator[str]:
    """Yield lines with their newline, in the order of their times."""
    rng = random.Random(seed)
    draw = rng.choices
    hosts = [
        f"{rng.randrange(1, 224)}.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randrange(256)}"
        for _ in range(_HOSTS)
    ]
    # A few hosts are busy, most are seen once: Zipf-like.
    host = draw(hosts, cum_weights=list(accumulate(1 / (n + 10) for n in range(_HOSTS))), k=records)
    path = draw(_PATHS, _PATH_WEIGHTS, k=records)
    method = draw(_METHODS, _METHOD_WEIGHTS, k=records)
    status = draw(_STATUSES, _STATUS_WEIGHTS, k=records)
    agent = draw(_AGENTS, _AGENT_WEIGHTS, k=records)
    referer = draw(_REFERERS, k=records)
    for n in range(records):
        number = rng.random()
        request = f"{method[n]} {path[n].format(int(number * 9_000))} HTTP/1.1"
        code: int | str = status[n]
        size: int | str = "-" if code in _NO_BODY else int(200 + number * number * 60_000)
        if int(number * 1e9) % _GARBAGE_ONE_IN == 0:
            request, code, size = _GARBAGE, 400, 226
        yield (
            f"{host[n]} - - [{_stamp(n // _REQUESTS_PER_S)}] "
            f'"{request}" {code} {size} "{referer[n]}" "{agent[n]}"\n'
        )


_stamps: dict[int, str] = {}


def _stamp(second: int) -> str:
    text = _stamps.get(second)
    if text is None:
        moment = time.gmtime(_STARTED_UNIX_S + second)
        # The month's name doesn't come from %b, which follows the locale.
        text = _stamps[second] = time.strftime("%d/Nov/%Y:%H:%M:%S +0000", moment)
    return text
