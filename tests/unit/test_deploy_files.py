"""The files of deploy/ say what is so: commands parse, names and ports agree, schemas hold."""

from __future__ import annotations

import configparser
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from flowctl.bolts.local import LocalBolts
from flowctl.cli.find_job import load_spout
from flowctl.cli.main import cli
from flowctl.errors import EXIT_FINISHED_WITH_LOSSES, EXIT_INTERRUPTED, EXIT_USAGE
from flowctl.runtime.run import FINAL_SAVE_TIMEOUT_S
from tests.airflow_parts import StandIn, stand_in

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
# The last save waits so long for an absent store; what runs the driver must not kill it before.
GRACE_S = FINAL_SAVE_TIMEOUT_S + 20


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def documents(name: str) -> list[Any]:
    yaml = pytest.importorskip("yaml")
    return [*yaml.safe_load_all((DEPLOY / name).read_text("utf-8"))]


def parse(words: list[str]) -> dict[str, Any]:
    """What flowctl understands of a command line; an error for an unknown option."""
    context = cli.make_context("flowctl", list(words[1:]))
    name, *rest = [*getattr(context, "_protected_args", ()), *context.args]
    command = cli.get_command(context, name)
    assert command is not None, name
    with command.make_context(name, rest, parent=context) as parsed:
        return dict(parsed.params)


# -- commands --------------------------------------------------------------------------------


def blocks_of(page: str, kind: str) -> list[str]:
    text = (DEPLOY / page).read_text("utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [block for name, block in found if name == kind]


def commands_of(page: str) -> Iterator[list[str]]:
    for block in blocks_of(page, ""):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] == "flowctl":
                yield words


@pytest.mark.parametrize("page", ["README.md", "platforms.md"])
def test_commands_of_the_pages_parse(page: str) -> None:
    found = list(commands_of(page))
    assert found
    for words in found:
        parse(words)


def test_what_is_to_be_pasted_on_a_platform_can_be_read_there() -> None:
    yaml = pytest.importorskip("yaml")
    application, policy = [yaml.safe_load(text) for text in blocks_of("platforms.md", "yaml")]
    driver = {one["name"]: one["value"] for one in application["spec"]["driver"]["env"]}
    [rule] = policy["spec"]["ingress"]
    assert int(driver["FLOWCTL_LISTEN_PORT"]) in [each["port"] for each in rule["ports"]]
    for text in blocks_of("platforms.md", "json"):
        json.loads(text if text.startswith("[") else f"{{{text}}}")
    for text in blocks_of("platforms.md", "python"):
        compile(text, "platforms.md", "exec")
    for text in blocks_of("platforms.md", "bash"):
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_the_composed_driver_runs_the_job_on_the_composed_cluster() -> None:
    [compose] = documents("compose.yaml")
    services = compose["services"]
    parsed = parse(services["driver"]["command"])
    assert parsed["master"] == f"spark://{services['master']['hostname']}:7077"
    assert services["worker-1"]["command"][-1] == parsed["master"]
    assert "7077" in services["master"]["command"]
    assert f"//{services['valkey']['hostname']}:" in parsed["redis_url"]
    assert f"listen.advertise={services['driver']['hostname']}" in parsed["overrides"]
    assert parsed["metrics"].endswith(":9108")
    [scrape] = documents("prometheus/prometheus.yml")
    targets = scrape["scrape_configs"][0]["static_configs"][0]["targets"]
    assert targets == [f"{services['driver']['hostname']}:9108"]
    assert float(services["driver"]["stop_grace_period"].removesuffix("s")) >= GRACE_S


def test_every_composed_service_comes_back_and_the_driver_not_for_ever() -> None:
    [composed] = documents("compose.yaml")
    restarts = {name: service["restart"] for name, service in composed["services"].items()}
    # Exit codes 2 and 3 do not pass by themselves, and compose can't tell them from others.
    assert re.fullmatch(r"on-failure:\d+", restarts.pop("driver"))
    assert set(restarts.values()) == {"unless-stopped"}


def test_the_composed_driver_waits_for_what_it_needs() -> None:
    [composed] = documents("compose.yaml")
    services = composed["services"]
    waits = services["driver"]["depends_on"]
    assert set(waits) == {"worker-1", "worker-2", "valkey", "postgres"}
    for name, how in waits.items():
        assert how == {"condition": "service_healthy"} and services[name]["healthcheck"], name


def test_what_compose_mounts_is_there_and_images_are_pinned() -> None:
    [compose] = documents("compose.yaml")
    for name, service in compose["services"].items():
        for mount in service.get("volumes", ()):
            source = mount.partition(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).exists(), f"{name}: {source}"
        assert ":" in service["image"] and not service["image"].endswith(":latest"), name
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name} is open to the network"


def test_the_composed_job_loads_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINK", f"sqlite:///{tmp_path / 'squares.db'}")
    monkeypatch.setenv("NUMBERS", "40")
    monkeypatch.setitem(sys.modules, "job", None)  # what it will be called
    spout = load_spout(str(DEPLOY / "job" / "job.py"))
    process: Any = getattr(spout.bolts, "process")  # noqa: B009
    spout.bolts = LocalBolts(process, count=2)
    report = spout.run(view="off")
    assert (report.outcome, report.records_acked) == ("finished", 40)


# -- the image -------------------------------------------------------------------------------


def test_the_image_is_pinned_not_root_and_checked() -> None:
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    [base] = re.findall(r"^FROM (\S+)$", text, re.MULTILINE)
    assert re.fullmatch(r"python:3\.1[1-9]\.\d+-slim-\w+", base)
    assert re.search(r"^USER \d+$", text, re.MULTILINE)
    assert "-c /src/constraints.txt" in text
    assert "/healthz" in text and "HEALTHCHECK" in text
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    [wanted] = re.findall(r"'/src\[([a-z,]+)\]'", text)
    assert set(wanted.split(",")) <= set(extras["optional-dependencies"])


# -- Kubernetes ------------------------------------------------------------------------------

MANIFESTS = sorted(path.name for path in (DEPLOY / "kubernetes").glob("*.yaml"))


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_follow_their_schemas(name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for document in documents(f"kubernetes/{name}"):
        validate.validate(document, validate.latest_version().rpartition(".")[0], strict=True)


def kubernetes() -> dict[str, Any]:
    return {
        document["kind"]: document
        for name in MANIFESTS
        for document in documents(f"kubernetes/{name}")
    }


def test_ports_and_labels_of_the_manifests_agree() -> None:
    made = kubernetes()
    pod = made["Job"]["spec"]["template"]
    service = made["Service"]["spec"]
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    assert service["clusterIP"] == "None"
    ports = {port["name"]: port["port"] for port in service["ports"]}
    conf = dict(
        line.split(maxsplit=1)
        for line in made["ConfigMap"]["data"]["spark-defaults.conf"].splitlines()
        if line and not line.startswith("#")
    )
    assert conf["spark.driver.host"] == made["Service"]["metadata"]["name"]
    assert int(conf["spark.driver.port"]) == ports["spark"]
    assert int(conf["spark.blockManager.port"]) == ports["blocks"]
    parsed = parse(pod["spec"]["containers"][0]["args"])
    assert f"listen.port={ports['bolts']}" in parsed["overrides"]
    assert parsed["metrics"].endswith(f":{ports['metrics']}")
    executors = {"app": conf["spark.kubernetes.executor.label.app"]}
    budget = made["PodDisruptionBudget"]["spec"]
    assert budget["selector"]["matchLabels"] == executors
    # maxUnavailable needs a controller that can be scaled, and executors have none.
    assert budget["minAvailable"] == int(conf["spark.executor.instances"]) - 1
    assert "maxUnavailable" not in budget
    assert "memoryOverhead" in " ".join(conf), "the Python workers live in it"
    rule = made["NetworkPolicy"]["spec"]["ingress"][0]
    assert rule["from"][0]["podSelector"]["matchLabels"] == executors
    allowed = {port["port"] for port in rule["ports"]}
    assert allowed == {ports["bolts"], ports["spark"], ports["blocks"]}


def test_the_driver_s_pod_saves_before_it_is_killed_and_is_not_root() -> None:
    made = kubernetes()
    spec = made["Job"]["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] >= GRACE_S
    assert spec["securityContext"]["runAsNonRoot"]
    moved, ended = made["Job"]["spec"]["podFailurePolicy"]["rules"]
    assert (moved["action"], moved["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert ended["onExitCodes"]["values"] == [EXIT_USAGE, EXIT_FINISHED_WITH_LOSSES]
    assert spec["serviceAccountName"] == made["ServiceAccount"]["metadata"]["name"]
    [secret] = spec["containers"][0]["envFrom"]
    assert secret["secretRef"]["name"] == made["Secret"]["metadata"]["name"]


def test_executors_are_pods_like_the_driver_in_its_namespace_and_go_with_it() -> None:
    made = kubernetes()
    yaml, validate = pytest.importorskip("yaml"), pytest.importorskip("kubernetes_validate")
    [driver] = made["Job"]["spec"]["template"]["spec"]["containers"]
    data = made["ConfigMap"]["data"]
    template = yaml.safe_load(data["executor.yaml"])
    # Spark adds the image.
    whole = {**template, "spec": {**template["spec"], "containers": [{"name": "executor"}]}}
    validate.validate(whole, validate.latest_version().rpartition(".")[0], strict=True)
    mounted = {volume["name"]: volume["mountPath"] for volume in driver["volumeMounts"]}
    assert f"podTemplateFile       {mounted['conf']}/executor.yaml" in data["spark-defaults.conf"]
    spec = made["Job"]["spec"]["template"]["spec"]
    assert template["spec"]["securityContext"] == spec["securityContext"]
    [container] = template["spec"]["containers"]
    assert container["securityContext"] == driver["securityContext"]
    [submit] = [e["value"] for e in driver["env"] if e["name"] == "PYSPARK_SUBMIT_ARGS"]
    fields = {e["name"]: e["valueFrom"]["fieldRef"] for e in driver["env"] if "valueFrom" in e}
    assert fields == {
        "POD": {"fieldPath": "metadata.name"},
        "NAMESPACE": {"fieldPath": "metadata.namespace"},
    }
    assert shlex.split(submit) == [
        *("--conf", "spark.kubernetes.driver.pod.name=$(POD)"),
        *("--conf", "spark.kubernetes.namespace=$(NAMESPACE)"),
        "pyspark-shell",
    ]


# -- systemd ---------------------------------------------------------------------------------


def test_the_unit_runs_flowctl_and_knows_its_exit_codes() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / "systemd" / "flowctl@.service").read_text("utf-8"))
    service = unit["Service"]
    metrics = service["Environment"].removeprefix("METRICS=")
    parsed = parse(shlex.split(service["ExecStart"].replace("${METRICS}", metrics)))
    assert parsed["job"] == "/etc/flowctl/%i.py"
    assert parsed["metrics"] == metrics, "two jobs of a machine can't have one port"
    left = f"{EXIT_USAGE} {EXIT_FINISHED_WITH_LOSSES}"
    assert service["RestartPreventExitStatus"] == left
    assert service["SuccessExitStatus"] == str(EXIT_INTERRUPTED)
    assert float(service["TimeoutStopSec"]) >= GRACE_S
    assert service["KillMode"] == "mixed", "the JVM must not get SIGTERM before the last save"


# -- Airflow ---------------------------------------------------------------------------------


@pytest.fixture
def airflow() -> Iterator[StandIn]:
    with stand_in() as found:
        yield found


def test_the_dag_runs_a_command_that_parses_and_one_run_at_a_time(airflow: StandIn) -> None:
    spec = importlib.util.spec_from_file_location("dag", DEPLOY / "airflow" / "flowctl_dag.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    [operator] = airflow.made
    parse([operator.program, "run", operator.job, *operator.options])
    assert operator.name == Path(operator.job).stem
    assert module.dag.options["max_active_runs"] == 1
