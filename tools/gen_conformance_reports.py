"""Write the reports in ``docs/conformance.md``: what ``pjrt conform`` finds in plugins that need no hardware.

    python tools/gen_conformance_reports.py                  # all
    python tools/gen_conformance_reports.py reference tiny   # some, beside the stored outcomes of the others
    python tools/gen_conformance_reports.py xla=report.json  # by a report of pjrt conform --report

The outcomes are stored in ``docs/conformance_reports.json``. The plugins of vendors need the extra ``vendor``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from generate import with_part

from pjrt.conformance import PluginReport, check_plugin
from pjrt.conformance.plugin.strengths import Strength, strength_of

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


def _wheel(package: str, library: str) -> Callable[[Path], str]:
    def find(folder: Path) -> str:
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise SystemExit(f"the package {package} is not installed; see CONTRIBUTING.md")
        return str(Path(found.submodule_search_locations[0]) / library)

    return find


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
    "lammps": Subject(
        "XLA's own plugin for CPUs, of lammps-jax-pjrt-cpu 0.11.2",
        _wheel("lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so"),
    ),
    "fastatomstruct": Subject(
        "the same, of fastatomstruct-xla-cpu 2026.6.23", _wheel("fastatomstruct_xla_cpu", "libpjrt_cpu.so")
    ),
    "xla": Subject("the same, of xla-cpu-pjrt 0.0.1", _wheel("xla_plugins", "xla_cpu_pjrt/xla_cpu_pjrt.so")),
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
    return stored(report)


def stored(report: PluginReport) -> dict[str, Any]:
    """Return what the page has of a report."""
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
        "leave out. The three columns in the middle are the checks that did not pass, by their "
        "[strength](#how-much-a-check-matters).",
        "",
        "| plugin | C API | passed | required | expected | hardening | unsupported | date |",
        "|---|---|---|---|---|---|---|---|",
    ]
    names = [name for name in SUBJECTS if name in store]
    for name in names:
        each, counts = store[name], store[name]["counts"]
        failed = Counter(strength_of(check) for check, _, _ in each["failures"])
        columns = [counts["passed"], *(failed[strength] for strength in Strength), counts["unsupported"]]
        numbers = " | ".join(map(str, columns))
        lines.append(f"| [{SUBJECTS[name].title}](#{name}) | {each['api_version']} | {numbers} | {each['date']} |")
    for name in names:
        lines += ["", f"### {name}", "", *_section(SUBJECTS[name], store[name])]
    return "\n".join(lines) + "\n"


def _section(subject: Subject, each: Mapping[str, Any]) -> list[str]:
    lines = [f"{subject.title[0].upper()}{subject.title[1:]}: {each['platform'] or 'no client'}."]
    if each["problem"]:
        lines += ["", f"No client can be made: {_cell(each['problem'])}"]
    if each["failures"]:
        lines += ["", "| check | verdict | strength | what happened |", "|---|---|---|---|"]
        lines += _failures(each["failures"])
    if each["unsupported"]:
        most_first = sorted(each["unsupported"].items(), key=lambda reason: (-reason[1], reason[0]))
        shown = most_first[:_SHOWN]
        lines += ["", "| unsupported | checks |", "|---|---|"]
        lines += [f"| {_cell(reason)} | {count} |" for reason, count in shown]
        rest = len(each["unsupported"]) - len(shown)
        if rest:
            lines += ["", f"{rest} further reasons are in `docs/conformance_reports.json`."]
    return lines


def _failures(failures: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a line for each check that failed and is required, and one for all of a family of others."""
    families: dict[tuple[str, str, Strength], list[str]] = {}
    for check, verdict, message in failures:
        strength = strength_of(check)
        name = check if strength is Strength.REQUIRED else check.partition("[")[0]
        families.setdefault((name, verdict, strength), []).append(message)
    order = list(Strength)
    for (name, verdict, strength), messages in sorted(families.items(), key=lambda each: order.index(each[0][2])):
        times = f" ({len(messages)})" if len(messages) > 1 else ""
        yield f"| `{name}`{times} | {verdict} | {strength} | {_cell(messages[0])} |"


def _cell(text: str) -> str:
    line = " ".join(text.split())
    return (line if len(line) <= 200 else f"{line[:199]}…").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def main() -> None:
    """Run the checks on the named plugins, and write their reports into the page."""
    store = json.loads(STORE.read_text()) if STORE.exists() else {}
    for argument in sys.argv[1:] or SUBJECTS:
        name, _, report = argument.partition("=")
        subject = SUBJECTS[name]
        store[name] = stored(PluginReport.read(report)) if report else outcomes_of(subject, os.cpu_count() or 1)
        print(name, store[name]["counts"], flush=True)
        STORE.write_text(json.dumps(store, indent=1, sort_keys=True) + "\n")
        PAGE.write_text(with_part(PAGE, "reports", tables(store)))


if __name__ == "__main__":
    main()
