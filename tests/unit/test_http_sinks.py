"""HttpSink and BulkSink against a service on loopback: what is sent, and what answers mean."""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from flowctl.bolts.batch import Batch
from flowctl.core.records import Record, Span
from flowctl.delivery.pacers import TargetPacer
from flowctl.errors import (
    CallTooLongError,
    ConfigError,
    JobError,
    RetryLater,
    TargetDownError,
    UnrunnableError,
)
from flowctl.failure.classify import refusal_of
from flowctl.pacing.gates import close_gates
from flowctl.pacing.target_settings import Limits
from flowctl_http import BulkSink, HttpSink
from tests.search_service import Answer, Cluster, Service, serve
from tests.unit.test_delivery import Letters, deliver


def batch_of(values: Any, *, first: int = 0, partition: str = "p") -> Batch:
    records = [Record(number, value) for number, value in enumerate(values, first)]
    span = Span("job", partition, records[0].position, records[-1].position, 1)
    return Batch(records, span, bolt="b", attempt=1)


def write(sink: Any, values: Any, **given: Any) -> Batch:
    batch = batch_of(values, **given)
    sink.write([record.value for record in batch], batch=batch)
    return batch


def fine(path: str, headers: dict[str, str], body: bytes) -> Answer:
    return 200, {}, b"ok"


@pytest.fixture
def service() -> Iterator[Service]:
    with serve(fine) as service:
        yield service


# -- HttpSink ------------------------------------------------------------------------------------


def test_one_request_with_all_rows_over_a_connection_that_is_kept(service: Service) -> None:
    sink = HttpSink(f"{service.url}/items", headers={"Authorization": "Bearer x"})
    write(sink, [{"a": 1}, {"a": 2}])
    write(sink, [{"a": 3}], first=2)
    sink.close()
    (path, headers, body), (_, _, second) = service.requests
    assert (path, json.loads(body), json.loads(second)) == (
        "/items",
        [{"a": 1}, {"a": 2}],
        [{"a": 3}],
    )
    assert headers["authorization"] == "Bearer x"
    assert headers["content-type"] == "application/json"
    assert service.connections == 1


def test_the_same_rows_have_the_same_key_and_others_another(service: Service) -> None:
    sink = HttpSink(service.url)
    for given in ({}, {}, {"first": 1}, {"partition": "q"}):
        write(sink, ["x", "y"], **given)
    write(sink, ["x"])
    keys = [headers["idempotency-key"] for _, headers, _ in service.requests]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4


def test_a_call_that_was_given_up_sends_nothing_however_late_it_comes_back(
    service: Service,
) -> None:
    """Kind: its rows failed, and may be letters by now: what is sent besides is there twice."""
    for sink in (HttpSink(service.url), BulkSink(service.url, index="i")):
        batch = batch_of([{"a": 1}])
        batch.overdue = CallTooLongError("a call took longer than 1 s (call_timeout_s)")
        with pytest.raises(CallTooLongError):
            sink.write([{"a": 1}], batch=batch)
    assert service.requests == []


def test_rows_that_go_to_two_places_of_a_service_have_two_keys(service: Service) -> None:
    """Else a service that keeps the keys of all its paths would leave out the second."""
    for place in ("orders", "audit"):
        write(HttpSink(f"{service.url}/{place}"), ["x"])
    write(HttpSink(f"{service.url}/audit", method="PUT"), ["x"])
    assert len({headers["idempotency-key"] for _, headers, _ in service.requests}) == 3


def test_body_method_and_headers_are_the_users(service: Service) -> None:
    tokens = iter(["t1", "t2"])
    sink = HttpSink(
        service.url,
        method="PUT",
        body="\n".join,
        headers=lambda: {"X-Token": next(tokens), "Content-Type": "text/csv"},
        idempotency_header=None,
    )
    write(sink, ["a", "b"])
    write(sink, [None, "c"])
    write(sink, [None])
    assert [body for _, _, body in service.requests] == [b"a\nb", b"c"]
    headers = [headers for _, headers, _ in service.requests]
    assert [h["x-token"] for h in headers] == ["t1", "t2"]
    assert headers[0]["content-type"] == "text/csv" and "idempotency-key" not in headers[0]


@pytest.mark.parametrize(
    ("row", "where"),
    [
        ({"a": None, "price": float("nan")}, "price is nan"),
        ({"items": [{"w": 1.0}, {"w": float("-inf")}]}, "items[1].w is -inf"),
        (float("inf"), "the row is inf"),
    ],
)
def test_a_row_with_a_number_that_json_does_not_have_is_rejected_by_name(
    service: Service, row: Any, where: str
) -> None:
    """As null it would look like a value that is missing."""
    batch = write(HttpSink(service.url), [{"price": None}, row, {"price": 2.5}])
    assert batch.rejected == {1: f"{where}, which JSON does not have"}
    write(HttpSink(service.url), [row])
    assert [body for _, _, body in service.requests] == [b'[{"price":null},{"price":2.5}]']
    with pytest.raises(JobError, match="which JSON does not have"):
        write(HttpSink(service.url, body=lambda rows: {"rows": rows}), [row])


def test_429_is_a_refusal_that_says_how_long(service: Service) -> None:
    service.answer = lambda *_: (429, {"Retry-After": "7"}, b"")
    with pytest.raises(Exception) as caught:
        write(HttpSink(service.url), ["x"])
    refusal = refusal_of(caught.value)
    assert refusal is not None and (refusal.after_s, refusal.reason) == (7.0, "HTTP 429")


def test_a_status_counts_though_the_page_behind_it_can_not_be_read(service: Service) -> None:
    broken = {"Content-Encoding": "gzip"}
    service.answer = lambda *_: (503, {"Retry-After": "7", **broken}, b"not gzip")
    with pytest.raises(Exception) as caught:
        write(HttpSink(service.url), ["x"])
    refusal = refusal_of(caught.value)
    assert refusal is not None and refusal.after_s == 7.0
    service.answer = lambda *_: (200, broken, b"not gzip")
    with pytest.raises(Exception, match="decompressing") as caught:
        write(HttpSink(service.url), ["x"])
    assert refusal_of(caught.value) is None


def test_an_answer_that_does_not_end_is_a_refusal(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(HttpSink(service.url), ["x"])
    monkeypatch.setattr("flowctl_http._connection._ANSWER_WAITS_MAX", -1)  # it is late at once
    with pytest.raises(Exception, match="did not end") as caught:
        write(HttpSink(service.url), ["x"])
    assert refusal_of(caught.value) is not None


_HTML = {"Content-Type": "text/html; charset=utf-8"}


def test_a_word_that_is_called_html_is_an_answer(service: Service) -> None:
    """As Flask calls it, and others, if nobody says what it is."""
    service.answer = lambda *_: (200, _HTML, b"ok")
    write(HttpSink(service.url), ["x"])


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((207, {}, b"<multistatus/>"), "207: some rows may have failed"),
        ((200, _HTML, b"\n<!DOCTYPE html><p>Log in"), "a page.*Log in"),
        ((200, _HTML, b"<html lang=en><p>Log in"), "a page.*Log in"),
    ],
)
def test_an_answer_that_does_not_say_that_rows_were_taken_is_a_fault(
    service: Service, answer: Answer, says: str
) -> None:
    service.answer = lambda *_: answer
    with pytest.raises(JobError, match=f"{says}.*on_response="):
        write(HttpSink(service.url), ["x"])
    seen: list[int] = []
    write(HttpSink(service.url, on_response=lambda r, _: seen.append(r.status_code)), ["x"])
    assert seen == [answer[0]]


@pytest.mark.parametrize("status", [302, 400, 500])
def test_other_answers_are_faults(service: Service, status: int) -> None:
    service.answer = lambda *_: (status, {}, b"no")
    with pytest.raises(Exception) as caught:
        write(HttpSink(service.url), ["x"])
    assert refusal_of(caught.value) is None


def test_nobody_there_and_no_answer_are_refusals(free_port: int) -> None:
    with pytest.raises(Exception) as caught:
        write(HttpSink(f"http://127.0.0.1:{free_port}"), ["x"])
    assert refusal_of(caught.value) is not None


def test_an_answer_may_reject_rows_or_ask_for_some_again(service: Service) -> None:
    service.answer = lambda *_: (200, {}, b'{"bad": [1]}')

    def look(response: Any, batch: Batch) -> None:
        for index in response.json()["bad"]:
            batch.reject(index, "not accepted")

    batch = write(HttpSink(service.url, on_response=look), ["x", "y"])
    assert batch.rejected == {1: "not accepted"}


def test_it_travels_to_workers_and_connects_there(service: Service) -> None:
    sink = HttpSink(service.url)
    write(sink, ["x"])
    write(pickle.loads(pickle.dumps(sink)), ["x"])
    assert len(service.requests) == 2


def test_the_time_counts_as_the_sinks(service: Service) -> None:
    batch = batch_of(["x"])
    ticks = iter(range(10))
    timed = Batch(list(batch), batch.span, bolt="b", attempt=1, clock=lambda: float(next(ticks)))
    HttpSink(service.url).write(["x"], batch=timed)
    assert timed.sink_s == 1.0


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"url": "ftp://x"}, "url"),
        ({"method": "GET"}, "method"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": float("inf")}, "timeout_s"),
    ],
)
def test_what_can_not_work_is_refused_by_name(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HttpSink(**{"url": "http://x", **given})
    assert caught.value.field == field


def test_a_password_in_a_wrong_address_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        HttpSink("ftp://me:secret@host/")
    assert "secret" not in str(caught.value)


def test_one_item_for_each_record_is_asked_for(service: Service) -> None:
    with pytest.raises(JobError, match="1 rows for a batch of 2 records"):
        HttpSink(service.url).write(["x"], batch=batch_of(["x", "y"]))


# -- BulkSink ------------------------------------------------------------------------------------


def bulk(service: Service, cluster: Cluster, **given: Any) -> BulkSink:
    service.answer = cluster.answer
    return BulkSink(service.url, **{"index": "orders", **given})


def taken(action: str, id: str, document: Any) -> tuple[int, str, str]:
    return 201, "", ""


def test_documents_are_written_under_their_ids(service: Service) -> None:
    cluster = Cluster(taken)
    write(bulk(service, cluster, id="n"), [{"n": 1, "v": "a"}, {"n": 2, "v": "b"}])
    assert cluster.documents == {"1": {"n": 1, "v": "a"}, "2": {"n": 2, "v": "b"}}


def test_without_an_id_a_row_that_comes_again_replaces_itself(service: Service) -> None:
    cluster = Cluster(taken)
    sink = bulk(service, cluster)
    write(sink, [{"v": 1}, {"v": 2}])
    write(sink, [{"v": 2}, {"v": 3}], first=1)
    write(sink, [{"v": 4}], partition="q")
    assert sorted(document["v"] for document in cluster.documents.values()) == [1, 2, 3, 4]


def test_what_was_refused_is_named_and_what_can_not_be_stored_is_rejected(service: Service) -> None:
    said = {
        "0": (429, "es_rejected_execution_exception", "queue is full"),
        "1": (201, "", ""),
        "2": (400, "mapper_parsing_exception", "failed to parse [n]"),
        "3": (503, "unavailable_shards_exception", "primary is not active"),
    }
    cluster = Cluster(lambda action, id, document: said[id])
    sink = bulk(service, cluster, id=lambda row: row)
    batch = batch_of(["0", "1", "2", "3"])
    with pytest.raises(RetryLater, match="2 of 4 items refused \\(es_rejected") as caught:
        sink.write([record.value for record in batch], batch=batch)
    assert caught.value.again == (0, 3)
    assert batch.rejected == {2: "mapper_parsing_exception: failed to parse [n]"}


def test_indices_are_those_of_the_batch_where_rows_are_left_out(service: Service) -> None:
    cluster = Cluster(lambda action, id, document: (429, "full", "full"))
    sink = bulk(service, cluster, id=lambda row: row)
    with pytest.raises(RetryLater) as caught:
        write(sink, [None, "a", None, "b"])
    assert caught.value.again == (1, 3)


def test_a_document_with_nan_is_rejected_and_the_others_keep_their_indices(
    service: Service,
) -> None:
    said = {"a": (201, "", ""), "c": (429, "full", "")}
    cluster = Cluster(lambda action, id, document: said[id])
    sink = bulk(service, cluster, id="id")
    rows = [{"id": "a", "v": None}, {"id": "b", "v": float("nan")}, {"id": "c", "v": 1.0}]
    batch = batch_of(rows)
    with pytest.raises(RetryLater) as caught:
        sink.write(rows, batch=batch)
    assert caught.value.again == (2,)
    assert batch.rejected == {1: "v is nan, which JSON does not have"}
    assert cluster.documents == {"a": {"id": "a", "v": None}}


def test_create_leaves_alone_what_is_there(service: Service) -> None:
    cluster = Cluster(lambda *_: (409, "version_conflict_engine_exception", "is there"))
    batch = write(bulk(service, cluster, action="create"), [{"v": 1}])
    assert batch.left_out == 1 and not batch.rejected


def test_update_and_delete(service: Service) -> None:
    cluster = Cluster(taken)
    write(bulk(service, cluster, id="n", action="update"), [{"n": 1}])
    assert cluster.documents["1"] == {"doc": {"n": 1}, "doc_as_upsert": True}
    cluster.judge = lambda *_: (404, "", "")
    batch = write(bulk(service, cluster, id="n", action="delete"), [{"n": 1}])
    assert not batch.rejected


@pytest.mark.parametrize(
    "said", [(404, "index_not_found_exception", "no such index"), (403, "security", "not you")]
)
def test_what_is_wrong_with_every_document_ends_the_run(service: Service, said: Any) -> None:
    with pytest.raises(UnrunnableError, match=said[1]):
        write(bulk(service, Cluster(lambda *_: said)), [{"v": 1}])


def test_an_answer_that_is_none_of_bulk_is_said(service: Service) -> None:
    service.answer = lambda *_: (200, {}, b'{"hello": 1}')
    with pytest.raises(JobError, match="does not have 1 items"):
        write(BulkSink(service.url, index="i"), [{"v": 1}])


@pytest.mark.parametrize(
    "item",
    ["{}", "null", "[]", '{"index":{}}', '{"index":null}', '{"index":{"status":"x"}}',
     '{"index":{"error":{"type":"mapper_parsing_exception"}}}',
     '{"index":{"status":200,"error":{"type":"mapper_parsing_exception"}}}'],
)  # fmt: skip
def test_an_item_that_does_not_say_what_became_of_its_document_is_not_taken_for_written(
    service: Service, item: str
) -> None:
    service.answer = lambda *_: (200, {}, b'{"errors":true,"items":[%s]}' % item.encode())
    with pytest.raises(JobError, match="does not say what became of its document"):
        write(BulkSink(service.url, index="i"), [{"v": 1}])


def test_an_error_in_an_item_counts_whatever_the_answer_says_of_all(service: Service) -> None:
    items = b'[{"index":{"status":400,"error":{"type":"mapper","reason":"no"}}}]'
    service.answer = lambda *_: (200, {}, b'{"errors":false,"items":%s}' % items)
    assert write(BulkSink(service.url, index="i"), [{"v": 1}]).rejected == {0: "mapper: no"}


def test_a_page_in_place_of_an_answer_is_shown(service: Service) -> None:
    service.answer = lambda *_: (200, {}, b"<html>\n<p>Log in</p>")
    with pytest.raises(JobError, match=r"/_bulk.* is not JSON: status 200, '<html> <p>Log in</p>'"):
        write(BulkSink(service.url, index="i"), [{"v": 1}])


def test_a_row_without_its_id_is_named(service: Service) -> None:
    sink = bulk(service, Cluster(taken), id="n")
    with pytest.raises(JobError, match="row 1 has no column 'n'"):
        write(sink, [{"n": 1}, {"v": 2}])
    with pytest.raises(JobError, match="row 0 has no id"):
        write(sink, [{"n": None}])


def test_a_bulk_request_that_is_refused_as_a_whole(service: Service) -> None:
    service.answer = lambda *_: (429, {}, b"{}")
    with pytest.raises(Exception) as caught:
        write(BulkSink(service.url, index="i"), [{"v": 1}])
    assert refusal_of(caught.value) is not None


# -- what is not allowed -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [HttpSink, functools.partial(BulkSink, index="i")])
def test_a_token_that_has_expired_is_renewed_once_where_headers_is_a_function(kind: Any) -> None:
    """The kind: a token that expires makes letters of good rows, and hundreds of calls."""
    tokens = iter(["old", "new", "new"])
    cluster = Cluster(lambda *_: (201, "", ""))

    def answer(path: str, headers: dict[str, str], body: bytes) -> Answer:
        if headers["authorization"] != "new":
            return 401, {}, b""
        return cluster.answer(path, headers, body) if path == "/_bulk" else (200, {}, b"ok")

    with serve(answer) as service:
        sink = kind(service.url, headers=lambda: {"Authorization": next(tokens)})
        write(sink, ["a"])
        write(sink, ["b"])
        assert len(service.requests) == 3


@pytest.mark.parametrize(("is_function", "calls"), [(True, 2), (False, 1)])
@pytest.mark.parametrize("status", [401, 403])
def test_a_dead_token_ends_a_delivery_at_once_and_no_row_becomes_a_letter(
    status: int, is_function: bool, calls: int
) -> None:
    letters = Letters()
    headers = {"Authorization": "Bearer dead"}
    with serve(lambda *_: (status, {}, b"the token has expired")) as service:
        sink = HttpSink(service.url, headers=(lambda: headers) if is_function else headers)

        def put(batch: Batch) -> None:
            sink.write([record.value for record in batch], batch=batch)

        with pytest.raises(UnrunnableError, match=rf"HTTP {status}.*token has expired.*No record"):
            deliver(put, range(200), dead_letter=letters)
        assert (len(service.requests), letters.kept) == (calls, [])


def test_a_403_of_a_limit_is_waited_for_with_the_same_token() -> None:
    with serve(lambda *_: (403, {"X-RateLimit-Remaining": "0"}, b"")) as service:
        sink = HttpSink(service.url, headers=lambda: {"Authorization": "x"})
        with pytest.raises(Exception, match="403") as caught:
            write(sink, ["a"])
        assert refusal_of(caught.value) is not None
        assert len(service.requests) == 1


def test_a_letter_of_an_http_answer_keeps_the_start_of_its_body() -> None:
    """The kind: "422 Unprocessable Entity" says that, and the body says why."""
    letters = Letters()
    body = '{"token": "s3cret", "detail": "field a\x07\n is missing"}' + "x" * 9_000

    with serve(lambda *_: (422, {}, body.encode())) as service:
        sink = HttpSink(service.url)

        def put(batch: Batch) -> None:
            sink.write([record.value for record in batch], batch=batch)

        deliver(put, ["one"], dead_letter=letters, attempts_max=1)
    [reason] = [letter[5] for letter in letters.kept]
    _, _, shown = reason.partition("the answer: ")
    assert shown.startswith('{"token": "***", "detail": "field a is missing"}xxx')
    assert len(shown) == 200


def test_the_words_for_a_target_that_refuses_say_what_it_asked_for(
    request: pytest.FixtureRequest,
) -> None:
    """The kind: "refused every call for too long" after a tenth of a second."""
    limits = Limits(give_up_after_s=1.0)
    pacer = TargetPacer("asks-for-90-minutes", limits=limits)
    request.addfinalizer(close_gates)
    with (
        serve(lambda *_: (429, {"Retry-After": "5400"}, b"")) as service,
        pytest.raises(TargetDownError, match=r"a wait of 5400 s; waits are cut to 300 s") as caught,
    ):
        pacer.run(lambda: write(HttpSink(service.url), ["a"]), None)
    assert "longer wait than 1 s" in str(caught.value)
