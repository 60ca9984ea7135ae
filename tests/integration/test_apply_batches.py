"""``apply`` with the batch APIs of OpenAI and Anthropic, against services on loopback."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

pytest.importorskip("httpx", reason="the client of batch APIs, an extra")

from flowctl.errors import ConfigError, FencedError, JobError, TargetDownError, UnrunnableError
from flowctl.pacing.gates import close_gates
from flowctl_apply import apply_parquet
from flowctl_apply._asking import Asking
from flowctl_files import FileDeadLetter
from tests import batch_job
from tests.batch_services import Anthropic, OpenAI
from tests.search_service import Service, serve

ROOT = Path(__file__).parents[2]
SCHEMA = pyarrow.schema([("id", pyarrow.int64()), ("label", pyarrow.string())])
ROWS = 1_000


def text_of(request: dict[str, Any]) -> str:
    return str(request["messages"][0]["content"])


def in_openai(request: dict[str, Any], before: int) -> tuple[int, Any]:
    content = text_of(request).upper()
    return 200, {"choices": [{"message": {"role": "assistant", "content": content}}]}


def in_anthropic(request: dict[str, Any], before: int) -> tuple[int, Any]:
    return 200, {"content": [{"type": "text", "text": text_of(request).upper()}]}


class Kit:
    """A fake service of one kind, and a job that asks it."""

    def __init__(self, kind: str, tmp_path: Path, service: Service) -> None:
        self.kind = kind
        self.fake: Any = OpenAI(in_openai) if kind == "openai" else Anthropic(in_anthropic)
        self.good = self.fake.judge
        self.service = service
        service.answer = self.fake.answer
        self._place = tmp_path
        source = tmp_path / "in"
        source.mkdir()
        for number in range(3):
            ids = list(range(number * ROWS // 3, (number + 1) * ROWS // 3))
            table = pyarrow.table({"id": ids, "text": [f"text {n}" for n in ids]})
            pyarrow.parquet.write_table(table, source / f"{number}.parquet", row_group_size=100)

    def api(self, **given: Any) -> Any:
        return batch_job.api_of(self.kind, self.service.url, **{"rows_max": 400, **given})

    def process(self, step: str) -> int:
        """Run the job in a process that kills itself at ``step``; return its exit code."""
        args = [self.kind, self.service.url, self._place / "in", self._place / "out", step]
        command = [sys.executable, "-m", "tests.batch_job", *args]
        return subprocess.run(command, check=False, cwd=ROOT).returncode

    def run(self, api: Any = None, **options: Any) -> Any:
        options = {"name": "labels", "bolts": 2, "view": "off", **options}
        return apply_parquet(
            self._place / "in", api or self.api(), schema=SCHEMA, out=self._place / "out", **options
        )

    def rows(self, done: Any) -> list[tuple[int, str]]:
        return sorted(
            (row["id"], row["label"])
            for file in done.files
            for row in pyarrow.parquet.read_table(file.removeprefix("file://")).to_pylist()
        )

    def leftovers(self) -> list[Path]:
        return list((self._place / "out/_flowctl/labels").rglob("batches/*"))


@pytest.fixture(params=["openai", "anthropic"])
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kit]:
    with serve(lambda *_: (404, {}, b"")) as service:
        yield Kit(request.param, tmp_path, service)
    close_gates()


def answers_once(kit: Kit, done: Any, *, also_submitted: bool = True) -> None:
    assert kit.rows(done) == [(n, f"TEXT {n}") for n in range(ROWS)]
    assert set(kit.fake.asked.values()) == {1}
    if also_submitted:
        assert set(kit.fake.submitted.values()) == {1}


def test_rows_are_asked_in_few_batches_once_each(kit: Kit) -> None:
    done = kit.run()
    answers_once(kit, done)
    assert kit.fake.calls.count("create") == len(kit.fake.batches) == 3  # 400, 400, 200: over files
    assert not kit.leftovers()
    calls = len(kit.fake.calls)
    assert kit.run().was_done
    assert len(kit.fake.calls) == calls


def test_bytes_bound_a_batch_too_and_so_does_their_number_at_once(kit: Kit) -> None:
    one = len(kit.api().line("flowctl-0123456789abcdef-100", kit.api().request({"text": "t" * 8})))
    most: list[int] = []
    begun = kit.fake.answer

    def watched(path: str, headers: dict[str, str], body: bytes) -> Any:
        at_work = [one for one in kit.fake.batches.values() if "results" not in one]
        most.append(sum(one.get("status", "in_progress") == "in_progress" for one in at_work))
        return begun(path, headers, body)

    kit.fake.polls = 2
    kit_service(kit, watched)
    answers_once(kit, kit.run(kit.api(bytes_max=100 * one, at_once=2)))
    assert len(kit.fake.batches) >= 10
    assert max(most) == 2


def kit_service(kit: Kit, answer: Callable[..., Any]) -> None:
    kit.service.answer = answer


@pytest.mark.parametrize("lost", ["create", "poll", "file", "list"])
def test_a_lost_answer_is_no_second_batch(kit: Kit, lost: str) -> None:
    kit.fake.losing = [lost, "create"] if lost == "list" else [lost]
    kit.fake.hidden = 1 if lost == "create" else 0  # and the list is late with it
    answers_once(kit, kit.run(kit.api(settle_s=1.0)))
    assert len(kit.fake.batches) == 3


def test_a_refused_submit_is_made_again(kit: Kit) -> None:
    kit.fake.refusing = 2
    answers_once(kit, kit.run())


# -- rows that fail ------------------------------------------------------------------------------


def test_a_row_that_fails_is_asked_again_or_rejected(kit: Kit, tmp_path: Path) -> None:
    def judge(request: dict[str, Any], before: int) -> tuple[int, Any]:
        number = int(text_of(request).split()[1])
        if number in (7, 500):
            return 400, {"type": "invalid_request_error", "code": None, "message": "too long"}
        if number % 100 == 3 and before < 2:
            return 500, {"type": "api_error", "message": "oops"}
        if number == 999 - ROWS % 3:
            return 500, {"type": "api_error", "message": "for ever"}
        return kit.good(request, before)

    kit.fake.judge = judge
    letters = FileDeadLetter(tmp_path / "letters")
    done = kit.run(dead_letter=letters, attempts_max=3)
    last = 999 - ROWS % 3
    numbers = [id for id, _ in kit.rows(done)]
    assert numbers == [n for n in range(ROWS) if n not in (7, 500, last)]
    by_id = {one.value["id"]: one.reason for one in letters.letters("labels")}
    assert sorted(by_id) == [7, 500, last]
    assert "too long" in by_id[7]
    assert "for ever" in by_id[last] and "asked 3 times" in by_id[last]
    assert sorted(set(kit.fake.asked.values())) == [1, 3]


def test_what_expired_is_asked_again(kit: Kit) -> None:
    kit.fake.expiring = {"batch_1", "msgbatch_1"}
    answers_once(kit, kit.run(), also_submitted=False)
    assert len(kit.fake.batches) == 4


def test_no_money_ends_the_run_saved(kit: Kit) -> None:
    def judge(request: dict[str, Any], before: int) -> tuple[int, Any]:
        if int(text_of(request).split()[1]) < 600:
            return kit.good(request, before)
        return 429, {"type": "billing_error", "code": "insufficient_quota", "message": "no money"}

    kit.fake.judge = judge
    with pytest.raises(UnrunnableError, match="no money"):
        kit.run()
    kit.fake.judge = kit.good
    done = kit.run()
    assert kit.rows(done) == [(n, f"TEXT {n}") for n in range(ROWS)]
    assert kit.fake.asked.most_common(1)[0][1] == 2
    assert sum(count == 2 for count in kit.fake.asked.values()) == 400


def test_a_row_whose_request_can_t_be_made_is_rejected_and_none_is_left_out(
    kit: Kit, tmp_path: Path
) -> None:
    api = kit.api()
    made = api.request

    def request(row: Any) -> Any:
        if row["id"] == 5:
            raise ValueError("no text")
        return None if row["id"] == 6 else made(row)

    api.request = request
    letters = FileDeadLetter(tmp_path / "letters")
    done = kit.run(api, dead_letter=letters)
    assert [id for id, _ in kit.rows(done)][:6] == [0, 1, 2, 3, 4, 7]
    assert [one.reason for one in letters.letters("labels")] == [
        "rejected: request: ValueError: no text"
    ]


def test_another_prompt_is_another_job(kit: Kit) -> None:
    kit.run()
    api = kit.api()
    made = api.request
    api.request = lambda row: {**made(row), "model": "large"}
    with pytest.raises(ConfigError, match="begun with another"):
        kit.run(api)


def test_a_service_that_is_none_and_a_wrong_key(kit: Kit) -> None:
    kit_service(kit, lambda *_: (200, {}, b"<html>hello"))
    with pytest.raises(JobError, match="not what a batch API says"):
        kit.run()
    kit_service(kit, lambda *_: (401, {}, b"{}"))
    with pytest.raises(UnrunnableError, match="401"):
        kit.run(name="labels2")
    kit_service(kit, kit.fake.answer)
    answers_once(kit, kit.run())  # nothing of it was submitted, and it goes on


# -- killed at each step -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.on_change("apply", "http")
@pytest.mark.parametrize("step", batch_job.STEPS)
def test_killed_at_each_step_rows_are_submitted_once(kit: Kit, step: str) -> None:
    assert kit.process(step) == -signal.SIGKILL
    assert kit.process("") == 0
    answers_once(kit, kit.run())


def test_a_driver_that_was_replaced_submits_nothing_more(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Asking._begin
    calls = iter(range(1_000))

    def begin(self: Any, more: Any) -> None:
        if next(calls) == 1:  # another driver begins, and ends, before the second batch
            kit.run()
        whole(self, more)

    monkeypatch.setattr(Asking, "_begin", begin)
    with pytest.raises(FencedError):
        kit.run()
    answers_once(kit, kit.run())


def test_a_service_that_is_away_ends_the_run_and_batches_go_on(kit: Kit) -> None:
    from flowctl import Limits

    kit.fake.polls = 0
    begun = kit.fake.answer
    kit_service(
        kit,
        lambda path, headers, body: (
            (503, {"Retry-After": "0"}, b"")
            if kit.fake.calls.count("poll") > 1
            else begun(path, headers, body)
        ),
    )
    with pytest.raises(TargetDownError, match="does not answer"):
        kit.run(target="llm", limits=Limits(give_up_after_s=0.2))
    kit_service(kit, begun)
    answers_once(kit, kit.run(name="labels"))
