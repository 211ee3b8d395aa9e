"""`python -m deploy.grafana.generate`: writes the dashboards' JSON; `--check` only says whether it is up to date.

The rule of this module: the JSON in `dashboards/` is never edited by hand.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from deploy.grafana import routing_decisions, slo_overview
from deploy.grafana.encode import encode
from deploy.grafana.model import Dashboard

DIRECTORY = Path(__file__).parent / "dashboards"

DASHBOARDS: Mapping[str, Callable[[], Dashboard]] = MappingProxyType(
    {"slo-overview.json": slo_overview.build, "routing-decisions.json": routing_decisions.build}
)
"""Every dashboard by its file's name."""


def rendered() -> dict[str, str]:
    """The text of every file."""
    return {name: json.dumps(encode(build()), indent=2) + "\n" for name, build in DASHBOARDS.items()}


def stale(directory: Path) -> list[str]:
    """The files in `directory` that differ from what would be written, are missing, or are nobody's."""
    wanted = rendered()
    found = {file.name: file.read_text() for file in directory.glob("*.json")}
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def write(directory: Path) -> None:
    """Write every file."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in rendered().items():
        (directory / name).write_text(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Write, or with `--check` return 1 where a file is stale."""
    parser = argparse.ArgumentParser(prog="python -m deploy.grafana.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file is stale")
    parser.add_argument("--out", type=Path, default=DIRECTORY, help="directory of the JSON files")
    options = parser.parse_args(argv)
    if not options.check:
        write(options.out)
        return 0
    names = stale(options.out)
    if names:
        print(f"stale: {', '.join(names)}; run python -m deploy.grafana.generate", file=sys.stderr)
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
