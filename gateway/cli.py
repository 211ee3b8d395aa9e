"""The `tidegate` command.

The rule of this module: it reads options, calls one function, and turns its errors into one line and an exit status.
The load-test commands are loaded only when the command line is built, since the gateway itself never needs them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path as FilePath
from typing import Annotated, NoReturn

import msgspec
import typer
import yaml
from rich.console import Console

from gateway import __version__
from gateway.commands.healthcheck import DEFAULT_URL
from gateway.commands.healthcheck import healthcheck as ask
from gateway.core.types import Decision, Endpoint, Refusal
from gateway.settings import Settings, SettingsError, load_settings
from policy_store.faults import BundleError, StoreError
from policy_store.store import FileStore

ConfigOption = Annotated[FilePath | None, typer.Option("--config", "-c", help="YAML settings file.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override one setting: section.field=value. May be repeated.")
]

StoreOption = Annotated[FilePath | None, typer.Option("--store", help="The policy store; default: routing.store.")]

app = typer.Typer(
    name="tidegate",
    help="An SLO-aware routing gateway for LLM inference.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
keys = typer.Typer(help="API keys.", no_args_is_help=True)
app.add_typer(keys, name="key")
policies = typer.Typer(help="Learned policies: what a policy store holds, and which one decides.", no_args_is_help=True)
app.add_typer(policies, name="policy")


class Scope(StrEnum):
    """What a key opens."""

    DATA = "data"
    ADMIN = "admin"


@app.command()
def serve(
    config: ConfigOption = None,
    override: SetOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (server.host).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (server.port).")] = None,
    policy: Annotated[str | None, typer.Option(help="Path policy (routing.policy).")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that serve together (server.workers).")] = None,
    stop_with_stdin: Annotated[bool, typer.Option(hidden=True)] = False,
    process: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the gateway in front of the configured workers."""
    flags = {"server.host": host, "server.port": port, "server.workers": workers, "routing.policy": policy}
    overrides = [*(override or []), *(f"{key}={value}" for key, value in flags.items() if value is not None)]
    try:
        status = _serve(config, overrides, process=process, stop_with_stdin=stop_with_stdin)
    except (SettingsError, OSError) as error:
        _stop(str(error))
    if status:
        raise typer.Exit(status)


def _serve(config: FilePath | None, overrides: Sequence[str], *, process: str | None, stop_with_stdin: bool) -> int:
    """Serve alone, as one of several, or as their parent: the exit status."""
    reread = partial(load_settings, config, overrides=overrides)
    if process is not None:
        from gateway.commands.processes.child import serve_told  # noqa: PLC0415 (only where it is needed)

        serve_told(process, config, overrides)
        return 0
    settings = reread()
    if settings.server.workers > 1:
        from gateway.commands.processes.parent import serve_together  # noqa: PLC0415

        return serve_together(settings, config=config, overrides=overrides, stop_with_stdin=stop_with_stdin)
    from gateway.commands.serve import serve as run  # noqa: PLC0415 (keeps `tidegate --help` quick)

    run(settings, reread=reread, stop_with_stdin=stop_with_stdin)
    return 0


@app.command()
def check(config: ConfigOption = None, override: SetOption = None) -> None:
    """Check settings and the policy that they name, and print the whole tree."""
    from gateway.api.admin import require_guarded_admin  # noqa: PLC0415 (keeps `tidegate --help` quick)
    from gateway.fleet.members import members_of  # noqa: PLC0415
    from gateway.policies import build_policy  # noqa: PLC0415
    from gateway.reload import allow_list  # noqa: PLC0415

    settings = _settings(config, override or [])
    try:
        policy = build_policy(settings)
        members = members_of(settings)
        allow_list(settings)
        require_guarded_admin(settings)
    except SettingsError as error:
        _stop(str(error))
    Console().print_json(settings.model_dump_json())
    Console(stderr=True).print(f"ok: policy {policy.path.name} ({policy.version}), {len(members)} workers")


@app.command()
def explain(
    request: Annotated[FilePath, typer.Option(help="A file with the JSON body of a request; - reads standard input.")],
    config: ConfigOption = None,
    override: SetOption = None,
    endpoint: Annotated[Endpoint, typer.Option(help="chat or completions.")] = Endpoint.CHAT,
    header: Annotated[list[str] | None, typer.Option(help="A request header, as name: value.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the decision as JSON.")] = False,
) -> None:
    """Say how a request would be routed on an idle fleet, and why, without sending anything."""
    from gateway.commands.explain import explain as decide  # noqa: PLC0415 (keeps `tidegate --help` quick)
    from gateway.commands.explain import show  # noqa: PLC0415

    settings = _settings(config, override or [])
    try:
        body = typer.get_binary_stream("stdin").read() if str(request) == "-" else request.read_bytes()
        decision = decide(body, endpoint, _headers(header or []), settings)
    except (SettingsError, OSError) as error:
        _stop(str(error))
    if not isinstance(decision, Decision):
        _stop(decision.words if isinstance(decision, Refusal) else decision.message)
    if as_json:
        Console().print_json(msgspec.json.encode(decision).decode())
    else:
        show(decision, Console())


@app.command()
def healthcheck(
    url: Annotated[str, typer.Option(help="What to ask.")] = DEFAULT_URL,
) -> None:
    """Ask a gateway whether it is alive: exit status 0 where it answers with a 2xx, else 1."""
    raise typer.Exit(ask(url))


@keys.command("new")
def new_key(
    name: Annotated[str, typer.Option(help="Who will use it.")] = "client",
    scope: Annotated[list[Scope] | None, typer.Option(help="What it opens; may be repeated.")] = None,
) -> None:
    """Make an API key: it is printed once, with the line for auth.keys that holds only its hash."""
    from gateway.api import auth  # noqa: PLC0415 (keeps `tidegate --help` quick)

    key = auth.new_key()
    entry = {"name": name, "sha256": auth.key_hash(key), "scopes": [str(each) for each in scope or [Scope.DATA]]}
    typer.echo(key)
    typer.echo(f"- {yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=1000)}", nl=False)


@policies.command("list")
def list_policies(store: StoreOption = None, config: ConfigOption = None, override: SetOption = None) -> None:
    """Print the bundles of the store, checked, and which one is active."""
    from gateway.commands.policy import show_list  # noqa: PLC0415 (keeps `tidegate --help` quick)

    with _store(store, config, override) as opened:
        show_list(opened, Console())


@policies.command("show")
def show_policy(
    version: Annotated[str | None, typer.Argument(help="A version in the store; default: the active one.")] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    override: SetOption = None,
) -> None:
    """Print what a bundle holds."""
    from gateway.commands.policy import show_bundle  # noqa: PLC0415

    with _store(store, config, override) as opened:
        version = version or opened.active()
        if version is None:
            raise StoreError(f"policy store {opened.root} has no active bundle; name a version")
        show_bundle(opened.read(version), Console())


@policies.command("add")
def add_policy(
    source: Annotated[FilePath, typer.Argument(help="A bundle's directory, or the JSON file of a path policy.")],
    note: Annotated[list[str] | None, typer.Option(help="Provenance of a JSON file, as name=text.")] = None,
    output_length: Annotated[
        FilePath | None, typer.Option(help="Folder of an output-length predictor to put into the bundle.")
    ] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    override: SetOption = None,
) -> None:
    """Check a bundle, copy it into the store and print its version; it does not decide yet."""
    from gateway.commands.policy import bundle_from  # noqa: PLC0415

    notes = dict(_note(text) for text in note or [])
    with _store(store, config, override) as opened:
        typer.echo(opened.add(bundle_from(source, notes, output_length)))


@policies.command("activate")
def activate_policy(
    version: Annotated[str, typer.Argument(help="A version in the store.")],
    store: StoreOption = None,
    config: ConfigOption = None,
    override: SetOption = None,
) -> None:
    """Check a bundle and let it decide; running gateways follow within routing.store_poll_s."""
    from gateway.commands.policy import show_pointer  # noqa: PLC0415

    with _store(store, config, override) as opened:
        show_pointer(opened.activate(version), Console())


@policies.command("rollback")
def roll_policy_back(store: StoreOption = None, config: ConfigOption = None, override: SetOption = None) -> None:
    """Let the bundle decide that was active before."""
    from gateway.commands.policy import show_pointer  # noqa: PLC0415

    with _store(store, config, override) as opened:
        show_pointer(opened.rollback(), Console())


@policies.command("off")
def switch_policy_off(store: StoreOption = None, config: ConfigOption = None, override: SetOption = None) -> None:
    """Let gateways decide by their built-in rule until the next activation or roll-back."""
    from gateway.commands.policy import show_pointer  # noqa: PLC0415

    with _store(store, config, override) as opened:
        show_pointer(opened.switch_off(), Console())


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """Run the command line."""
    _add_load_commands()
    app()


def _add_load_commands() -> None:
    from loadtest.commands import COMMANDS, GROUPS  # noqa: PLC0415 (see the module's rule)

    for name, command in COMMANDS.items():
        app.command(name)(command)
    for name, group in GROUPS.items():
        app.add_typer(group, name=name)


def _settings(file: FilePath | None, overrides: Sequence[str]) -> Settings:
    try:
        return load_settings(file, overrides=overrides)
    except SettingsError as error:
        _stop(str(error))


@contextmanager
def _store(root: FilePath | None, file: FilePath | None, overrides: Sequence[str] | None) -> Iterator[FileStore]:
    root = root or _settings(file, overrides or []).routing.store
    if root is None:
        _stop("which policy store? Give --store, or set routing.store")
    try:
        yield FileStore(root)
    except (BundleError, StoreError, OSError) as error:
        _stop(str(error))


def _note(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        _stop(f"--note takes name=text, not {text!r}")
    return name, value


def _headers(lines: Sequence[str]) -> list[tuple[bytes, bytes]]:
    pairs = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            _stop(f"--header takes 'name: value', not {line!r}")
        pairs.append((name.strip().lower().encode("latin-1"), value.strip().encode("latin-1")))
    return pairs


def _stop(message: str) -> NoReturn:
    Console(stderr=True).print(f"error: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(2)
