"""The chart of limited storage paths: lines join paths of one pacing; what is evenly paced has a sign of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from anncestry.report.charts import Figure, colours, storage
from anncestry.report.model import numbers
from anncestry.report.model.material import Material
from anncestry.report.site.page import _legend

SLICES = (({"read_mib_per_s": 10}, 34.5), ({"read_mib_per_s": 20}, 69.0), ({}, 900.0))
EVEN = (({"read_mib_per_s": 10, "pacing": "even"}, 33.8), ({"read_mib_per_s": 40, "pacing": "even"}, 130.0))
NAMES = {"dataset": "d", "system": "s", "workload": "w", "client": "bytes", "reason": ""}


def drawn(*paths: tuple[dict[str, Any], float]) -> Figure:
    rows, records = [], {}
    for number, (limits, qps) in enumerate(paths):
        record, topology = f"results/query/{number}.json", f"t{number}"
        row = {**NAMES, "topology": topology, "record": record, "metric": "qps", "value": qps, "unit": "1/s"}
        rows.append({**row, "number_id": f"n{number}", "phase": "query", "rebuild": 1, "k": 10, "clients": 4})
        pacing = {name: value for name, value in limits.items() if name == "pacing"}
        asked = {name: value for name, value in limits.items() if name != "pacing"}
        records[record] = {"storage_path": {"limits": {"asked": asked, **pacing}} if limits else {}}
    (figure,) = storage.figures(Material(numbers.frame(rows), records))
    return figure


def layers(figure: Figure) -> Iterable[tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]]:
    """Of each layer the mark, the encoding, and what it draws."""
    (panel,) = figure.panels
    for layer in panel.spec["layer"]:
        yield layer["mark"], layer["encoding"], layer["data"]["values"]


@pytest.mark.parametrize("paths", [(*SLICES, *EVEN), (*SLICES, EVEN[0]), EVEN], ids=["both", "one even", "even only"])
def test_no_line_joins_points_of_two_pacings_or_passes_through_one_of_the_other(paths: Any) -> None:
    joined: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for number, (mark, encoding, data) in enumerate(layers(drawn(*paths))):
        if mark["type"] == "line":
            series = [each["field"] for each in (*encoding["detail"], encoding["color"])]
            for point in data:
                joined.setdefault((str(number), *(point[name] for name in series)), []).append(point)
    found = {tuple(point["value"] for point in line) for line in joined.values()}
    by_pacing = [tuple(qps for limits, qps in paths if limits.get("pacing", "") == which) for which in ("", "even")]
    assert found == {line for line in by_pacing if line}
    # Each limit has one place, whatever the pacing, so that no line crosses the place of another pacing alone.
    places = {point["limit"] for line in joined.values() for point in line}
    assert places <= {"10 MiB/s", "20 MiB/s", "40 MiB/s", "no limit"}


def test_evenly_paced_points_have_a_sign_of_their_own_and_the_legend_and_the_axis_say_which() -> None:
    figure = drawn(*SLICES, *EVEN)
    filled: dict[bool, set[float]] = {}
    for mark, encoding, data in layers(figure):
        if mark["type"] == "point":
            filled[mark.get("filled", False)] = {point["value"] for point in data}
            assert encoding["x"]["title"] == "limit of reads (hollow: evenly paced)"
    assert filled == {True: {34.5, 69.0, 900.0}, False: {33.8, 130.0}}
    assert ("○", "currentColor", "hollow, dashed: evenly paced") in _legend(figure, colours(["s"]))
    assert "Hollow signs and dashed lines are of evenly paced paths." in figure.caption


def test_without_an_evenly_paced_path_nothing_tells_of_one() -> None:
    figure = drawn(*SLICES)
    assert "Hollow" not in figure.caption and "hollow" not in str(figure.panels[0].spec)
    assert [meaning for _, _, meaning in _legend(figure, colours(["s"]))] == ["s"]
