"""The shipped Prometheus configuration: every rule is tested, and asks only for what exists."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.grafana import routing_decisions, slo_overview
from gateway.settings import FleetSettings
from gateway.telemetry.metrics import METRICS

DIRECTORY = Path(__file__).parents[2] / "deploy" / "prometheus"
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "observability.md"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (apt-get install prometheus)")


def load(name: str) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load((DIRECTORY / name).read_text())
    return tree


RULES = [rule for group in load("rules.yml")["groups"] for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDS = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}


def promtool(*arguments: str) -> None:
    assert PROMTOOL is not None
    run = subprocess.run([PROMTOOL, *arguments], cwd=DIRECTORY, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@needs_promtool
def test_the_rules_do_what_their_tests_say() -> None:
    promtool("test", "rules", "rules_test.yml")


@needs_promtool
def test_prometheus_accepts_the_configuration() -> None:
    promtool("check", "config", "prometheus.yml")


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_is_seen_to_fire_and_to_stay_silent(alert: str) -> None:
    cases = [case for test in load("rules_test.yml")["tests"] for case in test["alert_rule_test"]]
    ours = [case["exp_alerts"] for case in cases if case["alertname"] == alert]
    assert any(ours), "no test sees it fire"
    assert [] in ours, "no test sees it stay silent"


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_how_bad_it_is_and_what_to_do(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"].endswith((".", '".'))
    assert len(rule["annotations"]["runbook"].split()) > 10
    assert f"`{alert}`" in GUIDE.read_text()


def test_rules_ask_only_for_declared_metrics_and_recorded_series() -> None:
    declared = {spec.full_name for spec in METRICS}
    for rule in RULES:
        assert set(re.findall(r"\btidegate_\w+", rule["expr"])) <= declared
        assert set(re.findall(r"\btidegate:[\w:]+", rule["expr"])) <= RECORDS.keys()


def test_numbers_that_have_a_home_elsewhere_are_the_same() -> None:
    assert f"> {FleetSettings().sample_max_age_s:g}" in ALERTS["TidegateStaleSamples"]["expr"]
    assert f"> {slo_overview.FAST_BURN:g}" in ALERTS["TidegateSloFastBurn"]["expr"]
    low, high = routing_decisions.MISPRICED_BELOW, routing_decisions.MISPRICED_ABOVE
    assert f"> {high:g}" in ALERTS["TidegatePricesOff"]["expr"]
    assert f"< {low:g}" in ALERTS["TidegatePricesOff"]["expr"]
    assert slo_overview.FAILED in RECORDS["tidegate:request_failures:ratio_rate5m"]
