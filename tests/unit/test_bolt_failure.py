from __future__ import annotations

import sqlite3

import msgspec
import pytest

from flowctl.bolts.outcomes import dying_of, fail_of
from flowctl.core.messages import Emission, Fail
from flowctl.core.records import Record
from flowctl.errors import FencedError, without_secrets
from flowctl.failure import texts

FRAME = Emission(7, "b1", 3, "p", [Record(1, "x")], None, 0)


def _fail(error: BaseException, record_index: int | None = None) -> Fail:
    def user_code() -> None:
        raise error

    try:
        user_code()
    except BaseException as caught:
        frame = fail_of(FRAME, caught, record_index)
    msgspec.msgpack.encode(frame)  # whatever was raised, it can be sent
    return frame


def test_it_names_the_error_and_where_it_was_raised():
    frame = _fail(ValueError("bad line"), 4)
    assert (frame.tuple_id, frame.attempt, frame.record_index) == (7, 3, 4)
    assert frame.error == "ValueError: bad line"
    assert "user_code" in frame.traceback
    assert not frame.is_fenced


def test_a_value_and_an_answer_about_what_was_sent_are_content_and_only_one_is_a_data_error():
    answer = sqlite3.IntegrityError("UNIQUE constraint failed: t.id")
    said = [_fail(error) for error in (ValueError("x"), answer, RuntimeError("x"))]
    assert [(one.is_content, one.is_data_error) for one in said] == [
        (True, True), (True, False), (False, False),
    ]  # fmt: skip


def test_an_error_without_a_text_is_its_name():
    assert _fail(ValueError()).error == "ValueError"
    assert _fail(TimeoutError()).error == "refused: TimeoutError"
    assert dying_of(KeyboardInterrupt()).reason == "process raised KeyboardInterrupt"
    assert dying_of(KeyboardInterrupt("enough")).reason.endswith(": enough")


def test_a_fenced_sink_is_told_apart():
    assert _fail(FencedError("a newer driver")).is_fenced


@pytest.mark.parametrize("text", ["x" * 50_000_000, "ü" * 5000])
def test_it_is_bounded_whatever_the_error_quotes(text):
    frame = _fail(ValueError(text))
    assert frame.error.startswith("ValueError: ")
    assert len(frame.error) <= 1_000
    assert len(frame.traceback) <= 4_000


def test_a_text_of_megabytes_is_cut_before_it_is_searched_for_passwords(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each `postgres://` is a place where a search of all that follows begins: it took minutes."""
    searched: list[int] = []

    def noted(text: str) -> str:
        searched.append(len(text))
        return without_secrets(text)

    monkeypatch.setattr(texts, "without_secrets", noted)
    _fail(ValueError("postgres://" * 500_000))
    assert len(searched) == 2, "the error and its traceback"
    assert max(searched) < 20_000


def test_no_password_is_shown_that_such_a_cut_divides() -> None:
    for size in (*range(960, 1_000, 9), *range(3_970, 4_000, 7), *range(8_960, 9_000, 3)):
        frame = _fail(ValueError("x" * size + " redis://user:secret@host:6379 " + "y" * 5_000))
        assert "user:" not in frame.error
    for size in (*range(3_970, 4_000, 7), *range(11_970, 12_000, 3)):
        frame = _fail(ValueError("x" * 9_000 + " redis://user:secret@host:6379 " + "y" * size))
        assert "cret@" not in frame.traceback


def test_the_end_of_a_long_traceback_is_kept():
    def deep(levels: int) -> None:
        if not levels:
            raise KeyError("innermost")
        deep(levels - 1) if levels % 2 else [deep(levels - 1)]

    try:
        deep(100)
    except KeyError as error:
        assert fail_of(FRAME, error, None).traceback.endswith("KeyError: 'innermost'\n")


def test_no_password_and_no_half_character_goes_out():
    frame = _fail(ConnectionError("redis://user:secret@host:6379 \ud800"))
    assert "secret" not in frame.error + frame.traceback
    assert "***@host" in frame.error


def test_an_error_that_cannot_be_shown_is_named_all_the_same():
    class Shy(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert _fail(Shy()).error == "Shy"
