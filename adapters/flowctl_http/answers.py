"""What a service answered: what ``on_response`` gets, and the error for a status that is none of
success.
"""

from __future__ import annotations

import codecs
import functools
import json
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

_CHARSET: Final = re.compile(r"charset=\"?([\w.-]+)", re.IGNORECASE)


class Response(msgspec.Struct, frozen=True, eq=False):
    """An answer, read to its end.  Can be pickled.

    ``headers`` has names in any case; ``content`` is the body, decompressed; ``url`` is that of the
    request, without user, password and query.
    """

    status_code: int
    reason_phrase: str
    headers: Mapping[str, str]
    content: bytes
    url: str

    def __repr__(self) -> str:
        return f"<Response {self.status_code} {self.reason_phrase}>"

    @property
    def _content(self) -> bytes:
        """What has been read, as httpx and requests call it: a letter shows the start of it."""
        return self.content

    @property
    def encoding(self) -> str:
        """The encoding that ``Content-Type`` names; UTF-8 if it names none that Python has."""
        found = _CHARSET.search(self.headers.get("Content-Type") or "")
        try:
            return "utf-8" if found is None else codecs.lookup(found[1]).name
        except LookupError:
            return "utf-8"

    @property
    def text(self) -> str:
        """The body as text; what can't be decoded is replaced."""
        return self.content.decode(self.encoding, "replace")

    def json(self) -> Any:
        """Return the body as JSON; raises ``ValueError`` if it is something else."""
        return json.loads(self.content)


class StatusError(Exception):
    """The service answered with a status that is none of success: ``response`` has it."""

    def __init__(self, response: Response) -> None:
        super().__init__(response)
        self.response: Response = response

    def __str__(self) -> str:
        said = self.response
        return f"{said.status_code} {said.reason_phrase} for {said.url}".replace("  ", " ")


@functools.lru_cache
def shown_url(url: str) -> str:
    """Return ``url`` for messages: user, password and query may be secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
