"""vllm-router and nginx: where they are, or where they can be had.

The rule of this module: nothing is installed outside the cache directory, and no service is started. What cannot be had
is one exception with its name, and the benchmark goes on without it.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

VLLM_ROUTER, NGINX = "vllm-router", "nginx"
RIVALS = (VLLM_ROUTER, NGINX)
ROUTER_VERSION = "0.1.17"
DEFAULT_CACHE = Path.home() / ".cache" / "tidegate-rivals"
SYSTEM_PATH = "/usr/sbin:/usr/local/sbin"
"""Where nginx is on machines whose users have it not in their PATH."""
INSTALL_TIMEOUT_S = 600.0


class NotToBeHad(RuntimeError):  # noqa: N818 (it says what is the case)
    """A rival is not here and could not be fetched."""


def find(name: str, cache: Path = DEFAULT_CACHE) -> Path:
    """The program of one of `RIVALS`, fetched into the cache where need be; raises NotToBeHad."""
    return {VLLM_ROUTER: _find_router, NGINX: _find_nginx}[name](cache)


def _find_router(cache: Path) -> Path:
    place = cache / "vr"
    program = place / "bin" / "vllm-router"
    if not _has_version(place):
        _run([sys.executable, "-m", "venv", str(place)], VLLM_ROUTER)
        _run([str(place / "bin" / "pip"), "install", "--quiet", f"vllm-router=={ROUTER_VERSION}"], VLLM_ROUTER)
    if not _has_version(place) or not program.is_file():
        raise NotToBeHad(f"{VLLM_ROUTER}: pip installed another version than {ROUTER_VERSION}")
    return program


def _has_version(place: Path) -> bool:
    return any(place.glob(f"lib/python3*/site-packages/vllm_router-{ROUTER_VERSION}.dist-info"))


def _find_nginx(cache: Path) -> Path:
    found = shutil.which(NGINX, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")
    if found is not None:
        return Path(found)
    place = cache / NGINX
    program = place / "usr" / "sbin" / NGINX
    if not program.is_file():
        _unpack_nginx(place)
    # Unpacked without what it depends on; most machines have that.
    _run([str(program), "-v"], NGINX)
    return program


def _unpack_nginx(place: Path) -> None:
    """The package's files alone: installed, it would start a server on every address of this machine."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise NotToBeHad(f"{NGINX}: not in PATH (on Debian: apt-get install nginx-light)")
    place.mkdir(parents=True, exist_ok=True)
    _run(["apt-get", "download", "--quiet", NGINX], NGINX, cwd=place)
    packages = sorted(place.glob(f"{NGINX}_*.deb"))
    if not packages:
        raise NotToBeHad(f"{NGINX}: apt-get downloaded nothing (apt-get install nginx-light)")
    _run(["dpkg-deb", "--extract", str(packages[-1]), str(place)], NGINX)


def _run(command: Sequence[str], name: str, *, cwd: Path | None = None) -> None:
    environment: Mapping[str, str] = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        subprocess.run(  # noqa: S603 (our own commands)
            command, cwd=cwd, env=environment, capture_output=True, check=True, timeout=INSTALL_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", b"") or b""
        last = said.decode(errors="replace").strip().splitlines()[-1:] or [str(error)]
        raise NotToBeHad(f"{name}: {last[0]}") from None
