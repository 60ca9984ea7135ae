"""Text of others as it is shown, and what is hidden of it."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.errors import ConfigError, without_secrets
from flowctl.instrumentation.text import (
    printable,
    printable_block,
    printable_problem,
    shown_command,
)

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
CONTROLS = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))


def test_controls_are_written_out() -> None:
    assert printable("\x1b]0;x\x07\r\n\t\x7f\x9b") == "\\x1b]0;x\\x07\\r\\n\\t\\x7f\\x9b"
    assert printable("a\u2028b\u202ec\udcff") == "a\\u2028b\\u202ec\\udcff"
    assert printable("ä 日本 e\u0301 👩\u200d💻 C:\\dir") == "ä 日本 e\u0301 👩\u200d💻 C:\\dir"
    assert printable(17) == "17"


@given(st.text(alphabet=st.one_of(st.sampled_from(CONTROLS + BIDI + "\u2028\u2029\ufeff"),
                                  st.characters())))  # fmt: skip
def test_nothing_that_acts_is_left(text: str) -> None:
    shown = printable(text)
    assert not set(shown) & set(CONTROLS + BIDI + "\u2028\u2029\ufeff")
    shown.encode()  # no half characters
    assert len(shown.splitlines()) <= 1
    assert printable(shown) == shown


def test_a_block_keeps_its_lines_and_none_of_them_looks_like_ours() -> None:
    text = 'Traceback:\n\tFile "x"\nValueError: \x1b[2J\nflowctl: finished\n'
    assert printable_block(text).split("\n") == [
        "  | Traceback:",
        '  |     File "x"',
        "  | ValueError: \\x1b[2J",
        "  | flowctl: finished",
    ]
    assert printable_problem("first\x07\nsecond") == "first\\x07\n  | second"
    assert printable_problem("first") == "first"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://me:secret@host:1/0", "redis://***@host:1/0"),
        ("redis://:secret@host", "redis://***@host"),
        ("redis://user:password@host", "redis://***@host"),
        ("redis://me:se@cret@host", "redis://***@host"),
        ("rediss://me:se/cr@et@host/1", "rediss://***@host/1"),
        ("unix:///run/r.sock?password=secret&db=1", "unix:///run/r.sock?password=***&db=1"),
        ("postgresql+psycopg://me:se/cret@host/db", "postgresql+psycopg://***@host/db"),
        ("at http://me:secret@proxy:1/ and 'redis://a:b@c'",
         "at http://***@proxy:1/ and 'redis://***@c'"),
        ("GET https://api/v1?api_key=abc123&page=2", "GET https://api/v1?api_key=***&page=2"),
        ("https://api/v1?access_token=abc.1-2, retry", "https://api/v1?access_token=***, retry"),
        ("https://c.blob/x?sv=1&sig=a%2Fb&se=2", "https://c.blob/x?sv=1&sig=***&se=2"),
        ("https://b.s3/x?X-Amz-Signature=0af", "https://b.s3/x?X-Amz-Signature=***"),
        ("host=db user=me password=secret port=1", "host=db user=me password=*** port=1"),
        ("host=db password='se cret' port=1", "host=db password=*** port=1"),
        ("jdbc:sqlserver://h;user=me;password=se=cret;x=1",
         "jdbc:sqlserver://h;user=me;password=***;x=1"),
        ("AWS_SECRET_ACCESS_KEY=abc/d+e", "AWS_SECRET_ACCESS_KEY=***"),
        ("connect(user='me', password='secret')", "connect(user='me', password=***)"),
        ("{'user': 'me', 'password': 'it is secret', 'n': 1}",
         "{'user': 'me', 'password': '***', 'n': 1}"),
        ('{"client_secret": "abc", "n": 1}', '{"client_secret": "***", "n": 1}'),
        ("Authorization: Bearer abc.def refused", "Authorization: Bearer *** refused"),
        ("{'Authorization': 'Basic YWJj', 'X-Api-Key': 'k', 'Accept': '*/*'}",
         "{'Authorization': 'Basic ***', 'X-Api-Key': '***', 'Accept': '*/*'}"),
    ],
)  # fmt: skip
def test_passwords_are_hidden(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
    assert without_secrets(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "Write redis://[user:password@]host[:port][/db], rediss://… for TLS, or unix:///path;"
        " percent-encode / ? # @ in a password.",
        "Put it into the Redis URL: redis://:PASSWORD@host:port.",
        "s3://bucket/mails/a@b.log, line 7",
        "max_tokens=4096: unexpected token ';' in the secret of the password",
        "the access key has no header Authorization; sig=7 (SIGBUS); cookies: none",
    ],
)
def test_usage_and_paths_are_left_alone(text: str) -> None:
    assert without_secrets(text) == text
    assert ConfigError("redis", "x", remedy=text).remedy == text


SECRET_URL = "redis://me:s3cret@host:6379/0"
START = ["flowctl", "run", "my job.py"]


@pytest.mark.parametrize("option", [["--redis", SECRET_URL], [f"--redis={SECRET_URL}"]])
def test_the_command_that_resumes_leaves_the_password_to_the_environment(
    option: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLOWCTL_REDIS_URL", raising=False)
    shown = shown_command([*START, *option, "--plain"])
    command, hint = shown.split("  # ")
    assert "s3cret" not in shown and "FLOWCTL_REDIS_URL" in hint
    words = shlex.split(command.replace("$FLOWCTL_REDIS_URL", SECRET_URL))
    assert words == [*START, *option, "--plain"]
    monkeypatch.setenv("FLOWCTL_REDIS_URL", SECRET_URL)
    assert shown_command([*START, *option, "--plain"]) == command


def test_other_words_of_the_command_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*START, "--redis", "redis://host/0", "--set", "a=b c"]
    assert shlex.split(shown_command(words)) == words
    shown = shown_command([*START, "--master", "spark://me:s3cret@host"])
    assert "s3cret" not in shown and "spark://***@host" in shown


@pytest.mark.parametrize("name", ["jä–ö", "ジョブ", "plain", "half \ud800"])
def test_a_name_that_python_did_not_decode_is_shown_as_it_is(name: str) -> None:
    """As with LC_ALL=C; a surrogate that stands for no byte stays escaped."""
    given = name if "\ud800" in name else name.encode().decode("ascii", "surrogateescape")
    assert printable(given) == name.replace("\ud800", "\\ud800")
