"""The compose stack, checked without an engine: files exist, and every address is one that something listens on."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from gateway.api.routes import Views, build_routes
from gateway.policies import build_policy
from gateway.settings import Settings, load_settings
from loadtest.worker.config import WorkerConfig

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = DEPLOY / "compose"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
WORKERS = ("prefill-0", "prefill-1", "decode-0", "decode-1")
OURS = (*WORKERS, "gateway", "load")
every_service = pytest.mark.parametrize("name", SERVICES)


@pytest.fixture(scope="module")
def settings() -> Settings:
    return load_settings(COMPOSE / "tidegate.yaml")


def worker_config(name: str) -> WorkerConfig:
    flag, text = SERVICES[name]["command"]
    assert flag == "--config-json"
    (fields,) = json.loads(text)
    return WorkerConfig(**fields)


def listening(settings: Settings) -> dict[str, int]:
    """The port that each service listens on inside the network."""
    ports = {name: worker_config(name).port for name in WORKERS}
    return {**ports, "gateway": settings.server.port, "prometheus": 9090, "grafana": 3000}


def mounts(name: str) -> dict[str, Path]:
    """Container path to host path; named volumes left out."""
    split = [volume.split(":") for volume in SERVICES[name].get("volumes", ())]
    return {target: (COMPOSE / source).resolve() for source, target, *_ in split if source.startswith(".")}


@every_service
def test_every_mounted_file_exists_and_is_read_only(name: str) -> None:
    assert [target for target, source in mounts(name).items() if not source.exists()] == []
    bound = [volume for volume in SERVICES[name].get("volumes", ()) if volume.startswith(".")]
    assert all(volume.endswith(":ro") for volume in bound)


@every_service
def test_a_service_waits_for_services_that_tell_when_they_are_healthy(name: str) -> None:
    for other, condition in SERVICES[name].get("depends_on", {}).items():
        assert condition == {"condition": "service_healthy"}
        assert "test" in SERVICES[other]["healthcheck"]


@every_service
def test_ports_are_published_on_loopback_only(name: str, settings: Settings) -> None:
    for published in SERVICES[name].get("ports", ()):
        address, _, inside = published.split(":")
        assert address == "127.0.0.1"
        assert int(inside) == listening(settings)[name]


@every_service
def test_a_healthcheck_asks_the_port_that_its_service_listens_on(name: str, settings: Settings) -> None:
    check = SERVICES[name]["healthcheck"]
    if check.get("disable"):
        assert name == "load"
        return
    assert urlsplit(check["test"][-1]).port == listening(settings)[name]


def test_the_gateways_healthcheck_is_readiness(settings: Settings) -> None:
    views = Views(models=list, ready=lambda: None, exposition=lambda _: (b"", ""))
    paths = {getattr(route, "path", None) for route in build_routes(views).routes}
    path = urlsplit(SERVICES["gateway"]["healthcheck"]["test"][-1]).path
    assert path == "/readyz"
    assert path in paths


@pytest.mark.parametrize("name", OURS)
def test_our_containers_need_no_privilege_and_no_writable_root(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert (COMPOSE / service["build"]["context"]).resolve() == DEPLOY.parent


def test_the_gateway_reads_the_settings_that_are_mounted_and_can_write_its_log(settings: Settings) -> None:
    gateway = SERVICES["gateway"]
    config = gateway["command"][gateway["command"].index("--config") + 1]
    assert mounts("gateway")[config] == COMPOSE / "tidegate.yaml"
    assert settings.server.host == "0.0.0.0"
    assert settings.telemetry.decision_log is not None
    assert str(settings.telemetry.decision_log.parent) in gateway["tmpfs"][0]
    assert float(gateway["stop_grace_period"].removesuffix("s")) > settings.server.drain_s
    assert build_policy(settings).path.name == "dynamo"


def test_the_gateways_workers_are_the_workers_of_the_stack(settings: Settings) -> None:
    assert [worker.id for worker in settings.workers] == list(WORKERS)
    for worker in settings.workers:
        config = worker_config(worker.id)
        assert worker.url == f"http://{worker.id}:{config.port}"
        assert (worker.id, worker.role) == (config.name, config.role)
        # Other workers fetch KV from it, so it must tell a name that resolves in the network.
        assert (config.host, config.advertise_host) == ("0.0.0.0", worker.id)
    assert set(SERVICES["gateway"]["depends_on"]) == set(WORKERS)


@pytest.mark.parametrize("name", WORKERS)
def test_a_workers_standard_input_stays_open(name: str) -> None:
    assert SERVICES[name]["stdin_open"] is True  # a closed one ends it


def test_the_load_goes_to_the_gateway(settings: Settings) -> None:
    command = SERVICES["load"]["command"]
    assert command[command.index("--url") + 1] == f"http://gateway:{settings.server.port}/v1"
    assert SERVICES["load"]["profiles"] == ["load"]


def test_prometheus_scrapes_the_gateway_and_every_worker(settings: Settings) -> None:
    config = mounts("prometheus")["/etc/prometheus/prometheus.yml"]
    tree = yaml.safe_load(config.read_text())
    targets = {
        job["job_name"]: [target for group in job["static_configs"] for target in group["targets"]]
        for job in tree["scrape_configs"]
    }
    ports = listening(settings)
    assert targets == {
        "tidegate": [f"gateway:{ports['gateway']}"],
        "vllm": [f"{name}:{ports[name]}" for name in WORKERS],
    }
    rules = [f"/etc/prometheus/{name}" for name in tree["rule_files"]]
    assert all(rule in mounts("prometheus") for rule in rules)


def test_grafana_is_provisioned_with_that_prometheus_and_both_dashboards(settings: Settings) -> None:
    provisioning = mounts("grafana")["/etc/grafana/provisioning"]
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == f"http://prometheus:{listening(settings)['prometheus']}"
    tree = yaml.safe_load(mounts("prometheus")["/etc/prometheus/prometheus.yml"].read_text())
    assert source["jsonData"]["timeInterval"] == tree["global"]["scrape_interval"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "tidegate.yaml").read_text())["providers"]
    folder = provider["options"]["path"]
    assert mounts("grafana")[folder] == DEPLOY / "grafana" / "dashboards"
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (mounts("grafana")[folder] / Path(home).relative_to(folder)).is_file()
