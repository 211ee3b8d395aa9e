"""Output-length predictors as files: one JSON and three XGBoost models beside it, in a folder or in a bundle.

The rule of this module: a predictor is data, never code; what was made for other features, is cut short or is not
finite is refused with the reason when it is read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.core.output_length.features import FEATURE_VERSION, FEATURES, FeatureSpec, Level
from gateway.core.output_length.own_line import OwnLine
from gateway.core.output_length.predictor import Head, Line, OutputLengthModel
from gateway.core.output_length.terms import LAYOUT, TextScore
from gateway.core.output_length.trees import NotFiniteTree, TreeError
from policy_store.boosters import read_booster
from policy_store.faults import BundleFault
from policy_store.finite import non_finite_json

FILE = "output_length.json"
HEADS = ("at_least_medium", "at_least_long", "log_length")
FILES = (FILE, *(f"{head}.ubj" for head in HEADS))
"""What a predictor is written as."""
VERSION_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """A predictor with the files that its trees were read from."""

    model: OutputLengthModel
    boosters: tuple[bytes, bytes, bytes]
    """XGBoost's UBJSON, in the order of `HEADS`."""
    rows: int
    """What it was learned from."""


class LineModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Intercept and slope."""

    intercept: float
    slope: float


class OwnLineModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A language model's own line."""

    intercept: float
    slope: float
    weights: tuple[float, float, float]
    centers: tuple[float, float, float]


class HeadModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One question: its lines, and its trees' file by hash."""

    start: LineModel
    end: LineModel
    own: dict[str, OwnLineModel]
    """By language model."""
    trees: str
    """Name of the UBJSON file beside this one."""
    sha256: str


class LevelModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model's usual length."""

    log_tokens: float
    spread: float


class TextModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The text score; the tables are little-endian 32-bit floats."""

    weights: bytes
    squares: bytes
    layout: tuple[float, ...]
    intercept: float
    trust: float


class OutputLengthFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The predictor. `provenance` says what it was learned from, for people."""

    format: Literal[2] = 2
    kind: Literal["output-length"] = "output-length"
    feature_version: int = FEATURE_VERSION
    features: tuple[str, ...] = FEATURES
    models: dict[str, LevelModel]
    unknown: LevelModel
    tenants: dict[str, float] = {}
    """Scores by tenant hash, in decimal digits."""
    text: TextModel | None = None
    heads: dict[str, HeadModel]
    rows: int
    provenance: dict[str, str] = {}


class OutputLengthFileError(ValueError):
    """A predictor that cannot be used: what is wrong, and where."""

    def __init__(self, fault: BundleFault, words: str) -> None:
        super().__init__(words)
        self.fault = fault


class _NotFinite(ValueError):  # noqa: N818 (it says what is the case)
    """A number that is none."""


def write_output_length(trained: Trained, folder: Path, *, provenance: dict[str, str]) -> Path:
    """Write a predictor into a folder, which is made where it is not there; returns the JSON's path."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in encode_output_length(trained, provenance=provenance).items():
        (folder / name).write_bytes(raw)
    return folder / FILE


def encode_output_length(trained: Trained, *, provenance: dict[str, str]) -> dict[str, bytes]:
    """A predictor's `FILES` by name."""
    model = trained.model
    names = {float(level.number): name for name, level in model.spec.models.items()}
    contents = dict(zip(FILES[1:], trained.boosters, strict=True))
    heads = {
        name: HeadModel(
            start=_line(head.start),
            end=_line(head.end),
            own={names[number]: _own_line(own) for number, own in head.own.items()},
            trees=file,
            sha256=sha256(contents[file]).hexdigest(),
        )
        for name, head, file in zip(HEADS, _heads(model), FILES[1:], strict=True)
    }
    text = model.spec.text
    content = OutputLengthFile(
        models={name: _level(level) for name, level in model.spec.models.items()},
        unknown=_level(model.spec.unknown),
        tenants={str(tenant): score for tenant, score in model.spec.tenants.items()},
        text=None if text is None else _text(text),
        heads=heads,
        rows=trained.rows,
        provenance=provenance,
    )
    return {FILE: _render(content), **contents}


def read_output_length(folder: Path) -> OutputLengthModel:
    """Read and check a predictor.

    Raises:
        OutputLengthFileError: a file cannot be read, or does not hold what it should; the words name the folder.
    """
    return decode_output_length(output_length_files(folder), where=f"{folder}/")


def output_length_files(folder: Path) -> dict[str, bytes]:
    """A folder's predictor as `FILES` by name; its trees may lie there under other names.

    Raises:
        OutputLengthFileError: a file cannot be read, or the JSON is none of a predictor.
    """
    content = _decode(_read(folder / FILE), f"{folder}/")
    contents, heads = {}, dict(content.heads)
    for name, file in zip(HEADS, FILES[1:], strict=True):
        head = content.heads[name]
        if Path(head.trees).name != head.trees:
            words = f"{folder}/{FILE}: {head.trees!r} is not the name of a file beside it"
            raise OutputLengthFileError(BundleFault.SHAPE, words)
        contents[file] = _read(folder / head.trees)
        heads[name] = msgspec.structs.replace(head, trees=file)
    return {FILE: _render(msgspec.structs.replace(content, heads=heads)), **contents}


def decode_output_length(contents: Mapping[str, bytes], *, where: str = "") -> OutputLengthModel:
    """The predictor in `FILES`, checked wholly; `where` goes before the names in a refusal's words.

    Raises:
        OutputLengthFileError: a file is missing, or does not hold what it should.
    """
    missing = [name for name in FILES if name not in contents]
    if missing:
        raise OutputLengthFileError(BundleFault.FILES, f"{where}{', '.join(missing)} is missing")
    content = _decode(contents[FILE], where)
    try:
        spec = _read_spec(content)
        medium, longer, length = (_read_head(content.heads[name], contents, spec) for name in HEADS)
        return OutputLengthModel(
            spec=spec,
            at_least_medium=medium,
            at_least_long=longer,
            log_length=length,
            version=sha256(contents[FILE]).hexdigest()[:VERSION_DIGITS],
        )
    except (_NotFinite, NotFiniteTree) as error:
        raise OutputLengthFileError(BundleFault.NOT_FINITE, f"{where}{FILE}: {error}") from error
    except ValueError as error:
        raise OutputLengthFileError(BundleFault.SHAPE, f"{where}{FILE}: {error}") from error


def _decode(raw: bytes, where: str) -> OutputLengthFile:
    try:
        content = msgspec.json.decode(raw, type=OutputLengthFile)
    except (msgspec.DecodeError, RecursionError) as error:
        words = f"{where}{FILE} is not an output-length predictor"
        for place in non_finite_json(raw, FILE):
            raise OutputLengthFileError(BundleFault.NOT_FINITE, f"{words}: {place} is not a finite number") from error
        raise OutputLengthFileError(BundleFault.FORMAT, f"{words}: {error}") from error
    if content.feature_version != FEATURE_VERSION or content.features != FEATURES:
        words = f"{where}{FILE} was made for other features (version {content.feature_version})"
        raise OutputLengthFileError(BundleFault.FEATURES, words)
    if set(content.heads) != set(HEADS):
        raise OutputLengthFileError(BundleFault.SHAPE, f"{where}{FILE} must have {', '.join(HEADS)}")
    return content


def _render(content: OutputLengthFile) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content, order="deterministic"), indent=2) + b"\n"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OutputLengthFileError(BundleFault.UNREADABLE, f"cannot read {path}: {error.strerror}") from error


def _read_spec(content: OutputLengthFile) -> FeatureSpec:
    _check_finite("tenants", content.tenants.values())
    return FeatureSpec(
        models={name: _read_level(content.models[name], number) for number, name in enumerate(sorted(content.models))},
        unknown=_read_level(content.unknown),
        tenants={int(tenant): score for tenant, score in content.tenants.items()},
        text=None if content.text is None else _read_text(content.text),
    )


def _read_level(level: LevelModel, number: int = -1) -> Level:
    if not (isfinite(level.log_tokens) and isfinite(level.spread) and level.spread > 0.0):
        raise ValueError("levels must be finite, and their spread above zero")
    return Level(log_tokens=level.log_tokens, spread=level.spread, number=number)


def _read_text(text: TextModel) -> TextScore:
    weights, squares = _table(text.weights), _table(text.squares)
    if not weights.size or weights.size & (weights.size - 1) or weights.size != squares.size:
        raise ValueError("the tables of terms must be of one length, a power of two")
    if not (squares > 0.0).all():
        raise ValueError("the squares of terms must be above zero")
    if len(text.layout) != len(LAYOUT):
        raise ValueError(f"the layout must have {len(LAYOUT)} weights")
    _check_finite("text score", (*text.layout, text.intercept, text.trust))
    return TextScore(
        weights=weights, squares=squares, layout=text.layout, intercept=text.intercept, trust=text.trust
    )  # fmt: skip


def _read_head(head: HeadModel, contents: Mapping[str, bytes], spec: FeatureSpec) -> Head:
    data = contents.get(head.trees)
    if data is None:
        raise ValueError(f"{head.trees!r} is not the name of a file beside it")
    if sha256(data).hexdigest() != head.sha256:
        raise ValueError(f"{head.trees} is not the file that this was written with")
    trees = read_booster(data)
    if trees.features != len(FEATURES):
        raise TreeError(f"{head.trees} takes {trees.features} features instead of {len(FEATURES)}")
    strangers = head.own.keys() - spec.models.keys()
    if strangers:
        raise ValueError(f"{', '.join(sorted(strangers))} has a line of its own but no level")
    own = {float(spec.models[name].number): _read_own_line(line) for name, line in head.own.items()}
    return Head(start=_read_line(head.start), trees=trees, end=_read_line(head.end), own=own)


def _read_line(line: LineModel) -> Line:
    if not (isfinite(line.intercept) and isfinite(line.slope) and line.slope > 0.0):
        raise ValueError("a line must be finite, and its slope above zero")
    return Line(intercept=line.intercept, slope=line.slope)


def _read_own_line(line: OwnLineModel) -> OwnLine:
    _check_finite("a model's own line", (line.intercept, line.slope, *line.weights, *line.centers))
    if line.slope <= 0.0:
        raise ValueError("a model's own line must have a slope above zero")
    return OwnLine(intercept=line.intercept, slope=line.slope, weights=line.weights, centers=line.centers)


def _table(data: bytes) -> npt.NDArray[np.float32]:
    if len(data) % 4:
        raise ValueError("a table of terms is cut short")
    table = np.frombuffer(data, dtype="<f4").astype(np.float32)
    _check_finite("terms", table.tolist())
    return table


def _check_finite(what: str, values: Iterable[float]) -> None:
    if not all(map(isfinite, values)):
        raise _NotFinite(f"{what}: a figure is not finite")


def _heads(model: OutputLengthModel) -> tuple[Head, Head, Head]:
    return model.at_least_medium, model.at_least_long, model.log_length


def _line(line: Line) -> LineModel:
    return LineModel(intercept=line.intercept, slope=line.slope)


def _own_line(line: OwnLine) -> OwnLineModel:
    return OwnLineModel(
        intercept=line.intercept, slope=line.slope, weights=line.weights, centers=line.centers
    )  # fmt: skip


def _level(level: Level) -> LevelModel:
    return LevelModel(log_tokens=level.log_tokens, spread=level.spread)


def _text(text: TextScore) -> TextModel:
    return TextModel(
        weights=text.weights.astype("<f4").tobytes(),
        squares=text.squares.astype("<f4").tobytes(),
        layout=text.layout,
        intercept=text.intercept,
        trust=text.trust,
    )
