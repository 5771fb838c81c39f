"""The page "Find plugins", held to what is there: its examples are read or run, its tables compared."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from pjrt import plugins
from pjrt.plugins import schema
from pjrt.plugins.discovery import wheels

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()

pytestmark = pytest.mark.usefixtures("nothing_configured")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def rows(heading: str) -> list[list[str]]:
    """The cells of the table that has a column of this name."""
    table = next(part for part in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE) if heading in part.splitlines()[0])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_the_configuration_is_understood() -> None:
    file, _ = blocks("toml")
    for table in tomllib.loads(file)["plugins"].values():
        assert schema.read_table(table)


def test_the_manifest_is_understood(tmp_path: Path) -> None:
    (text,) = blocks("json")
    (tmp_path / schema.manifest_name("mychip")).write_text(text)
    assert schema.read_manifest(tmp_path / schema.manifest_name("mychip")).keys() == json.loads(text).keys()


def test_every_key_is_on_the_page() -> None:
    assert sorted(key.strip("`") for key, _ in rows("| key")) == sorted(schema.KEYS)


def test_every_vendor_and_wheel_is_on_the_page() -> None:
    (row,) = [row for row in rows("source") if row[1].startswith("vendors' wheels")]
    assert re.findall(r"`([\w-]+)`", row[1]) == [
        wheel.distribution for vendor in wheels.vendors().values() for wheel in vendor.wheels
    ]
    assert re.findall(r"`(\w+)`", row[2]) == list(wheels.vendors())


def test_the_priorities_are_those_of_the_page() -> None:
    said = {name.strip("`"): int(number) for name, number, _ in rows("its hardware is here") if name.startswith("`")}
    here = {name: vendor.facts.get("priority", 0) for name, vendor in wheels.vendors().items()}
    assert said == here | {name: plugins.declaration(name).priority for name in ("cpu", "reference")}


def test_all_names_of_the_registry_are_on_the_page_or_in_the_reference() -> None:
    for name in ("names", "available", "declaration", "declarations", "load_plugin", "loaded", "refresh", "register"):
        assert f"pjrt.plugins.{name}(" in PAGE
