"""Write the reports in ``docs/conformance.md``: what ``pjrt conform`` finds in plugins that need no hardware.

    python tools/gen_conformance_reports.py                  # all
    python tools/gen_conformance_reports.py reference tiny   # some, beside the stored outcomes of the others

The outcomes are stored in ``docs/conformance_reports.json``. The plugins of vendors need the extra ``vendor``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from generate import with_part

from pjrt.conformance import check_plugin

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "conformance.md"
STORE = ROOT / "docs" / "conformance_reports.json"
TESTS = ROOT / "tests" / "conformance" / "plugin"
_SHOWN = 12
"""The most reasons of unsupported checks that the page has for a plugin."""


@dataclass(frozen=True)
class Subject:
    """A plugin of the page.

    Attributes:
        title: its name on the page.
        plugin: returns its name or path; gets a folder for files.
        options: the options of its clients.
        programs: the folder of its own programs.
        environment: variables to set before it is loaded.
    """

    title: str
    plugin: Callable[[Path], str]
    options: Mapping[str, Any] = field(default_factory=dict)
    programs: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


def _tiny(folder: Path) -> str:
    sys.path.insert(0, str(ROOT / "tests" / "plugins"))
    from tiny import build

    return str(build.build_tiny(folder))


def _scaffold(folder: Path) -> str:
    subprocess.run([sys.executable, "-m", "pjrt", "new-plugin", "mychip"], cwd=folder, check=True)
    module = folder / "mychip" / "src" / "mychip" / "__init__.py"
    return f"{module}:make_client"


def _vendor(name: str) -> Callable[[Path], str]:
    return lambda folder: name


TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}
"""Without these libtpu asks a server for two minutes."""

SUBJECTS = {
    "cpu": Subject("`cpu`, exported", _vendor("cpu"), {"num_devices": 4}),
    "reference": Subject("`reference`, exported", _vendor("reference"), {"num_devices": 4}),
    "scaffold": Subject("the plugin of `pjrt new-plugin`, exported", _scaffold),
    "iree": Subject("`iree`, exported", _vendor("iree")),
    "tiny": Subject("the tiny plugin in C of the tests", _tiny, {"num_devices": 4}, str(TESTS / "programs")),
    "tpu": Subject("libtpu, without a TPU", _vendor("tpu"), environment=TPU),
    "cuda": Subject("jax-cuda13-pjrt, without a GPU", _vendor("cuda")),
}


def outcomes_of(subject: Subject, jobs: int) -> dict[str, Any]:
    """Run the checks on a plugin, and return what the page has of them."""
    os.environ.update(subject.environment)
    with tempfile.TemporaryDirectory() as folder:
        report = check_plugin(
            subject.plugin(Path(folder)), subject.options, programs=subject.programs, jobs=jobs, time_limit=120.0
        )
    return {
        "date": date.today().isoformat(),
        "api_version": ".".join(map(str, report.facts.get("api_version", ()))),
        "platform": report.facts.get("platform_version") or report.facts.get("platform", ""),
        "problem": report.facts.get("problem", ""),
        "counts": {str(verdict): number for verdict, number in report.counts.items()},
        "failures": [[each.check, str(each.verdict), each.message] for each in report.failures],
        "unsupported": dict(report.unsupported),
    }


def tables(store: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the tables of the stored outcomes as Markdown."""
    lines = [
        "The outcomes of [`pjrt conform`](cli.md#conform) on the plugins that can be had without hardware.",
        "`python tools/gen_conformance_reports.py` writes these tables. *Unsupported* is what a plugin may lawfully "
        "leave out.",
        "",
        "| plugin | C API | passed | failed | crashed | hung | unsupported | date |",
        "|---|---|---|---|---|---|---|---|",
    ]
    names = [name for name in SUBJECTS if name in store]
    for name in names:
        each, counts = store[name], store[name]["counts"]
        numbers = " | ".join(
            str(counts.get(verdict, 0)) for verdict in ("passed", "failed", "crashed", "hung", "unsupported")
        )
        lines.append(f"| [{SUBJECTS[name].title}](#{name}) | {each['api_version']} | {numbers} | {each['date']} |")
    for name in names:
        lines += ["", f"### {name}", "", *_section(SUBJECTS[name], store[name])]
    return "\n".join(lines) + "\n"


def _section(subject: Subject, each: Mapping[str, Any]) -> list[str]:
    lines = [f"{subject.title[0].upper()}{subject.title[1:]}: {each['platform'] or 'no client'}."]
    if each["problem"]:
        lines += ["", f"No client can be made: {_cell(each['problem'])}"]
    if each["failures"]:
        lines += ["", "| check | verdict | what happened |", "|---|---|---|"]
        lines += [f"| `{check}` | {verdict} | {_cell(message)} |" for check, verdict, message in each["failures"]]
    if each["unsupported"]:
        most_first = sorted(each["unsupported"].items(), key=lambda reason: (-reason[1], reason[0]))
        shown = most_first[:_SHOWN]
        lines += ["", "| unsupported | checks |", "|---|---|"]
        lines += [f"| {_cell(reason)} | {count} |" for reason, count in shown]
        rest = len(each["unsupported"]) - len(shown)
        if rest:
            lines += ["", f"{rest} further reasons are in `docs/conformance_reports.json`."]
    return lines


def _cell(text: str) -> str:
    line = " ".join(text.split())
    return (line if len(line) <= 200 else f"{line[:199]}…").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def main() -> None:
    """Run the checks on the named plugins, and write their reports into the page."""
    store = json.loads(STORE.read_text()) if STORE.exists() else {}
    for name in sys.argv[1:] or SUBJECTS:
        store[name] = outcomes_of(SUBJECTS[name], os.cpu_count() or 1)
        print(name, store[name]["counts"], flush=True)
        STORE.write_text(json.dumps(store, indent=1, sort_keys=True) + "\n")
        PAGE.write_text(with_part(PAGE, "reports", tables(store)))


if __name__ == "__main__":
    main()
