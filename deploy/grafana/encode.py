"""A dashboard as the JSON that Grafana reads.

The rule of this module: a pure function of the dashboard, in a fixed order, so that the files change only when the
dashboard does. Written for schema version 39 (Grafana 11).
"""

from collections.abc import Iterable
from string import ascii_uppercase
from typing import Any

from deploy.grafana.model import (
    Column,
    Dashboard,
    Kind,
    LabelVariable,
    Panel,
    Place,
    Query,
    State,
    Thresholds,
)

Json = dict[str, Any]

SCHEMA_VERSION = 39
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
NO_TRAFFIC = "no traffic"
"""What a panel shows for NaN: a quantile or a ratio of nothing."""
TAG = "tidegate"
BY_NAME, BY_QUERY = "byName", "byFrameRefID"
"""What an override is for: series of a name, or all series of a query."""


def encode(dashboard: Dashboard) -> Json:
    """The dashboard's JSON object."""
    panels = [_panel(number, panel, place) for number, (panel, place) in enumerate(dashboard.placed(), start=1)]
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "links": [_link_to_the_others()],
        "templating": {"list": [_datasource_variable(), *map(_variable, dashboard.variables)]},
        "panels": panels,
    }


def _link_to_the_others() -> Json:
    return {
        "type": "dashboards",
        "title": "Tidegate",
        "tags": [TAG],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
    }


def _datasource_variable() -> Json:
    return {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "hide": 0}


def _variable(variable: LabelVariable) -> Json:
    query = f"label_values({variable.metric}, {variable.label})"
    return {
        "name": variable.name,
        "label": variable.title,
        "hide": 0,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": "labels"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _panel(number: int, panel: Panel, place: Place) -> Json:
    return {
        "id": number,
        "type": panel.kind.value,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": {"x": place.x, "y": place.y, "w": place.width, "h": place.height},
        "targets": _targets(panel),
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _options(panel.kind),
        **_table_transformations(panel),
    }


def _targets(panel: Panel) -> list[Json]:
    if panel.kind is Kind.TABLE:
        shape: Json = {"format": "table", "instant": True, "range": False}
        queries: Iterable[Query] = (Query(expr=column.expr) for column in panel.columns)
    else:
        is_tile = panel.kind in (Kind.STAT, Kind.BAR_GAUGE)
        shape = {"format": "time_series", "instant": is_tile, "range": not is_tile}
        queries = panel.queries
    return [
        {
            "refId": letter,
            "datasource": DATASOURCE,
            "expr": query.expr,
            "legendFormat": query.legend or "__auto",
            **shape,
        }
        for letter, query in zip(ascii_uppercase, queries, strict=False)
    ]


def _defaults(panel: Panel) -> Json:
    is_coloured = panel.kind in (Kind.STAT, Kind.BAR_GAUGE, Kind.STATE_TIMELINE)
    defaults: Json = {
        "unit": panel.unit.value,
        "noValue": NO_TRAFFIC,
        "mappings": _mappings(panel.states),
        "thresholds": _thresholds(panel.thresholds),
        "color": {"mode": "thresholds" if is_coloured else "palette-classic"},
        "custom": _custom(panel),
    }
    limits = {"min": panel.minimum, "max": panel.maximum, "decimals": panel.decimals}
    return {**defaults, **{key: value for key, value in limits.items() if value is not None}}


def _mappings(states: tuple[State, ...]) -> list[Json]:
    no_traffic = {"type": "special", "options": {"match": "nan", "result": {"text": NO_TRAFFIC, "color": "text"}}}
    if not states:
        return [no_traffic]
    words = {str(s.value): {"text": s.text, "color": s.colour.value, "index": s.value} for s in states}
    return [{"type": "value", "options": words}, no_traffic]


def _thresholds(thresholds: Thresholds) -> Json:
    steps: list[Json] = [{"value": None, "color": thresholds.base.value}]
    steps += [{"value": step.value, "color": step.colour.value} for step in thresholds.steps]
    return {"mode": "absolute", "steps": steps}


def _custom(panel: Panel) -> Json:
    match panel.kind:
        case Kind.TIME_SERIES:
            return {
                "lineWidth": 1,
                "fillOpacity": 30 if panel.is_stacked else 8,
                "showPoints": "never",
                "spanNulls": False,
                "stacking": {"mode": "normal" if panel.is_stacked else "none", "group": "A"},
                "thresholdsStyle": {"mode": "dashed" if panel.thresholds.show_lines else "off"},
            }
        case Kind.STATE_TIMELINE:
            return {"fillOpacity": 70, "lineWidth": 0}
        case Kind.TABLE:
            return {"align": "auto", "filterable": True}
        case Kind.STAT | Kind.BAR_GAUGE:
            return {}


def _overrides(panel: Panel) -> list[Json]:
    queries = zip(ascii_uppercase, panel.queries, strict=False)
    limits = [_limit_override(letter) for letter, query in queries if query.is_limit]
    return limits + [_column_override(column) for column in panel.columns]


def _limit_override(ref_id: str) -> Json:
    properties = {
        "color": {"mode": "fixed", "fixedColor": "red"},
        "custom.lineStyle": {"fill": "dash", "dash": [8, 6]},
        "custom.fillOpacity": 0,
        "custom.stacking": {"mode": "none"},
    }
    # By query and not by name: its legend may hold labels.
    return _override(BY_QUERY, ref_id, properties)


def _column_override(column: Column) -> Json:
    properties: Json = {"unit": column.unit.value}
    if column.states:
        properties["mappings"] = _mappings(column.states)
        properties["custom.cellOptions"] = {"type": "color-text"}
    return _override(BY_NAME, column.title, properties)


def _override(matcher: str, options: str, properties: Json) -> Json:
    listed = [{"id": key, "value": value} for key, value in properties.items()]
    return {"matcher": {"id": matcher, "options": options}, "properties": listed}


def _options(kind: Kind) -> Json:
    last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    match kind:
        case Kind.TIME_SERIES:
            legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
            return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
        case Kind.STAT:
            return {"reduceOptions": last, "colorMode": "value", "graphMode": "none", "textMode": "auto"}
        case Kind.BAR_GAUGE:
            return {"reduceOptions": last, "orientation": "horizontal", "displayMode": "basic", "showUnfilled": True}
        case Kind.STATE_TIMELINE:
            return {"mergeValues": True, "showValue": "auto", "rowHeight": 0.8, "tooltip": {"mode": "single"}}
        case Kind.TABLE:
            return {"showHeader": True, "cellHeight": "sm", "footer": {"show": False}}


def _table_transformations(panel: Panel) -> Json:
    """Grafana calls a table's values `Value #A`, or `Value` where there is one query only."""
    if panel.kind is not Kind.TABLE:
        return {}
    alone = len(panel.columns) == 1
    values = {
        "Value" if alone else f"Value #{letter}": column.title
        for letter, column in zip(ascii_uppercase, panel.columns, strict=False)
    }
    names = {**panel.label_titles, **values}
    organise = {
        "renameByName": names,
        "excludeByName": {"Time": True},
        "indexByName": {name: index for index, name in enumerate(names)},
    }
    return {"transformations": [{"id": "merge", "options": {}}, {"id": "organize", "options": organise}]}
