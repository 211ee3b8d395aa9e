"""Rivals that are there, that can be had, and that cannot."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loadtest.plane import rivals
from loadtest.plane.rivals import NGINX, ROUTER_VERSION, VLLM_ROUTER, NotToBeHad, find


def installed(cache: Path, version: str = ROUTER_VERSION) -> Path:
    """A router of a version, as pip leaves it."""
    (cache / "vr" / "lib" / "python3.11" / "site-packages" / f"vllm_router-{version}.dist-info").mkdir(parents=True)
    program = cache / "vr" / "bin" / "vllm-router"
    program.parent.mkdir(parents=True)
    program.touch()
    return program


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """The commands that were run, none of which does anything."""
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str], **_: Any) -> None:
        commands.append(command)

    monkeypatch.setattr(rivals.subprocess, "run", run)
    return commands


def test_a_router_that_is_there_is_taken(tmp_path: Path, ran: list[Sequence[str]]) -> None:
    program = installed(tmp_path)
    assert find(VLLM_ROUTER, tmp_path) == program
    assert ran == []


def test_another_version_is_replaced_or_told(tmp_path: Path, ran: list[Sequence[str]]) -> None:
    installed(tmp_path, version="0.1.16")
    with pytest.raises(NotToBeHad, match="another version"):
        find(VLLM_ROUTER, tmp_path)
    assert ran[-1][-1] == f"vllm-router=={ROUTER_VERSION}"


def test_what_the_installer_said_last_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: Sequence[str], **_: Any) -> None:
        raise subprocess.CalledProcessError(1, command, stderr=b"looking\nno such package\n")

    monkeypatch.setattr(rivals.subprocess, "run", fail)
    with pytest.raises(NotToBeHad, match="vllm-router: no such package"):
        find(VLLM_ROUTER, tmp_path)


def test_an_installed_nginx_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: list[Sequence[str]]) -> None:
    monkeypatch.setattr(rivals.shutil, "which", lambda name, **_: f"/usr/sbin/{name}")
    assert find(NGINX, tmp_path) == Path("/usr/sbin/nginx")
    assert ran == []


def test_without_apt_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals.shutil, "which", lambda name, **_: None)
    with pytest.raises(NotToBeHad, match="apt-get install nginx-light"):
        find(NGINX, tmp_path)


def test_nginx_is_unpacked_and_never_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: list[Sequence[str]]
) -> None:
    monkeypatch.setattr(rivals.shutil, "which", lambda name, **_: None if name == NGINX else f"/usr/bin/{name}")
    (tmp_path / NGINX).mkdir()
    (tmp_path / NGINX / "nginx_1.22_amd64.deb").touch()
    find(NGINX, tmp_path)
    assert [command[:2] for command in ran[:2]] == [["apt-get", "download"], ["dpkg-deb", "--extract"]]
    assert ran[2] == [str(tmp_path / NGINX / "usr" / "sbin" / "nginx"), "-v"]
