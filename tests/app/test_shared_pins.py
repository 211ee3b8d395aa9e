"""The gateway with a server of shared pins in its settings: what stops it, and what does not."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.api.admin import RestartNeeded
from gateway.api.admin_views import masked_settings
from gateway.app import Gateway, open_gateway
from gateway.settings import Settings, SettingsError

MODEL = "llama"
NOBODY_S = "redis://someone:secret@127.0.0.1:1/0"
"""Nothing listens there."""


def settings(url: str, **sections: Any) -> Settings:
    return Settings(workers=[{"id": "w0", "url": "http://127.0.0.1:9"}], shared={"url": url}, **sections)


def probes() -> httpx.MockTransport:
    """Every worker answers its probes, and serves one model."""
    page = {"data": [{"id": MODEL, "object": "model"}]}
    return httpx.MockTransport(lambda request: httpx.Response(200, json=page))


async def get(gateway: Gateway, path: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gateway.asgi), base_url="http://gw") as client:
        return await client.get(path)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:6379",
        "redis://:secret/secret@host:6379",
        "redis://host:99999",
        "redis://host?secret=1",
        "rediss://host?ssl_cert_reqs=secret",
        "",
    ],
)
async def test_a_url_that_is_none_is_a_settings_error_that_tells_no_secret(url: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    with pytest.raises(SettingsError, match=r"^shared\.url: this is no URL of a Redis or Valkey server") as refused:
        async with open_gateway(settings(url, telemetry={"journal": journal}), transport=probes()):
            pass
    assert "secret" not in str(refused.value)
    assert refused.value.__suppress_context__
    assert not journal.exists()


@pytest.mark.parametrize("cluster", [False, True])
async def test_a_server_that_is_not_there_stops_nothing(cluster: bool) -> None:
    chosen = settings(NOBODY_S)
    chosen = chosen.model_copy(update={"shared": chosen.shared.model_copy(update={"cluster": cluster})})
    async with open_gateway(chosen, transport=probes()) as gateway:
        assert (await get(gateway, "/readyz")).status_code == 200
        page = (await get(gateway, "/metrics")).text
    assert "tidegate_shared_up 0.0" in page
    assert "tidegate_shared_downs_total 1.0" in page


async def test_without_a_url_nothing_is_shared_or_shown() -> None:
    async with open_gateway(Settings(), transport=probes()) as gateway:
        page = (await get(gateway, "/metrics")).text
    assert "tidegate_shared_up " not in page.replace("# HELP tidegate_shared_up", "").replace(
        "# TYPE tidegate_shared_up", ""
    )


def test_nobody_sees_the_url() -> None:
    shown = masked_settings(settings(NOBODY_S))["shared"]
    assert shown["prefix"] == "tidegate"
    assert "secret" not in str(shown)
    assert "secret" not in repr(settings(NOBODY_S))


async def test_another_server_needs_a_restart() -> None:
    other = settings("redis://127.0.0.1:2")
    async with open_gateway(settings(NOBODY_S), transport=probes(), reread=lambda: other) as gateway:
        with pytest.raises(RestartNeeded, match=r"shared\.url"):
            await gateway.reloader.reload()


def test_the_library_is_loaded_only_where_it_is_needed() -> None:
    told = "import sys, gateway.app; print('redis' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
