"""Clients that an ``async def`` keeps for its process: one event loop for all that runs there.

The kind of defect: what a process keeps belongs to something that lives shorter than the process.
A module's ``httpx.AsyncClient`` was first used in the loop of one partition; in the next partition
its requests went out and then failed, and their rows were sent twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowctl import FlowControlSpout, LocalBolts
from flowctl.bolts.batch import Batch
from flowctl.bolts.event_loop import run_shared
from flowctl.errors import UnrunnableError
from flowctl.testing.stores import MemoryCheckpointStore
from tests.runtime_parts import ListProducer
from tests.search_service import Service, serve
from tests.unit.test_delivery import deliver

PAGE = Path(__file__).parents[2] / "docs" / "process.md"


class Kept:
    """A client of httpx that is made once in a process, as a module's global is."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Any = None

    async def send(self, batch: Batch) -> None:
        httpx = pytest.importorskip("httpx")
        if self._client is None:
            self._client = httpx.AsyncClient()
        await self._client.post(self._url, json=[record.value for record in batch])


@pytest.fixture
def service() -> Iterator[Service]:
    with serve(lambda *_: (200, {}, b"ok")) as service:
        yield service


def sent(service: Service) -> Counter[Any]:
    return Counter(row for _, _, body in service.requests for row in json.loads(body))


def test_four_partitions_of_one_worker_send_each_row_once(service: Service) -> None:
    client = Kept(service.url)
    for part in range(4):
        deliver(client.send, range(30 * part, 30 * part + 30), rows_max=5)
    assert sent(service) == Counter(range(120))


def test_partitions_in_threads_of_one_process_do_so_too(service: Service) -> None:
    client = Kept(service.url)
    threads = [
        threading.Thread(target=deliver, args=(client.send, range(30 * part, 30 * part + 30)))
        for part in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sent(service) == Counter(range(120))


def test_two_local_bolts_share_a_client_and_the_job_ends(service: Service) -> None:
    client = Kept(service.url)
    report = FlowControlSpout(
        name="kept-client",
        producer=ListProducer(200),
        bolts=LocalBolts(client.send, count=2, slots=4),
        checkpoint=MemoryCheckpointStore(),
    ).run(view="off")
    assert (report.records_acked, sent(service)) == (
        200,
        Counter(f"record {number}" for number in range(1, 201)),
    )


def test_what_a_coroutine_raises_is_raised_where_it_is_waited_for() -> None:
    async def fails(error: BaseException) -> None:
        raise error

    for error in (KeyError("mine"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()):
        with pytest.raises(type(error)):
            run_shared(fails(error))

    async def fine() -> int:
        return 7

    assert run_shared(fine()) == 7, "the loop goes on"


def test_a_fork_has_a_loop_of_its_own() -> None:
    """Spark's workers are forks, perhaps of a process in which a loop runs."""

    async def fine() -> int:
        return 7

    assert run_shared(fine()) == 7
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, str(run_shared(fine())).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        assert said.read() == "7"
    os.waitpid(child, 0)


def test_a_job_that_is_started_in_the_loop_is_refused_instead_of_waiting_for_ever() -> None:
    async def inner() -> None:
        pass

    async def outer() -> None:
        run_shared(inner())

    with pytest.raises(UnrunnableError, match="another job"):
        run_shared(outer())


def test_the_example_of_the_page_sends_each_row(service: Service) -> None:
    pytest.importorskip("aiohttp", reason="the client of the example")
    found = re.search(r"<!-- async: .*? -->\n```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert found is not None
    code = found[1].replace("https://api.example.com/v1/items", service.url)
    names: dict[str, Any] = {"LocalBolts": LocalBolts}
    exec(compile(code, PAGE.name, "exec"), names)
    FlowControlSpout(
        name="async-page",
        producer=ListProducer(300),
        bolts=names["bolts"],
        checkpoint=MemoryCheckpointStore(),
    ).run(view="off")
    # At least once: a batch comes again whole, where this service has no place for a connection.
    taken = {json.loads(body) for _, _, body in service.requests}
    assert taken == {f"record {number}" for number in range(1, 301)}
    assert service.connections > 1
    run_shared(names["client"]().close())
