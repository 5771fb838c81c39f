"""No test is red by chance: none depends on how fast the machine is, or on what else it does."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]

SLEEPERS = {
    "clusters/test_lost_workers.py": "keeps Python's lock",
    "device_api/anydevice/tiny_host.py": "is the operation of a program",
    "distributed/test_heartbeats.py": "sleeps on a clock that does not wait",
    "distributed/test_job.py": "looks again and again, with a limit",
    "native/random_kills.py": "kills at random moments",
    "network/hosts.py": "is a network that fails for a time",
    "plugins/tiny/control.py": "looks again and again, with a limit",
    "plugins/waiting.py": "looks again and again, with a limit",
    "remote/client/test_connection.py": "keeps Python's lock",
    "remote/security/slow_network.py": "is a slow network",
    "remote/random_sessions.py": "kills at random moments, and attacks for a time",
    "system/test_starvation.py": "leaves time between two looks",
}
"""What sleeps, beside devices that hang (for 600 seconds), and why it may."""

CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "thread_time", "time_ns"}
COMPARE_TIMES = {"layers/inject/test_inject.py": "with the least time", "plugins/waiting.py": "with a limit of minutes"}

SHORTEST_PATIENCE = 60
"""The seconds that anything may take. Limits of less than one second are for what must not happen within them."""


@cache
def sources() -> dict[str, str]:
    """Return the source of each file of tests, by its path below this folder."""
    files = sorted(path for path in Path(__file__).parent.rglob("*.py") if path != Path(__file__))
    return {path.relative_to(Path(__file__).parent).as_posix(): path.read_text() for path in files}


def lines_with(pattern: str, allowed: Container[str] = ()) -> list[str]:
    """Return the places of the lines in which a pattern is."""
    return [
        f"{name}:{number}"
        for name, text in sources().items()
        if name not in allowed
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(pattern, line)
    ]


def nodes(pattern: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield the nodes of the files with a pattern, each with its file: to read all files so would take ten seconds."""
    for name, text in sources().items():
        if re.search(pattern, text):
            yield from ((name, node) for node in ast.walk(ast.parse(text)))


def test_nothing_sleeps_to_wait() -> None:
    assert not lines_with(r"\bsleep\((?!0\)|600\))", SLEEPERS), "wait for an event, or with waiting.wait_until"
    assert set(SLEEPERS) <= set(sources())


def test_nothing_has_a_port_of_its_own() -> None:
    """A server listens at the port 0, and says which it got; one that must be known before is reserved."""
    assert not lines_with(r"\bfree_port\b|\.bind\(\(.*, 0\)\)"), "use pjrt.system.processes"
    assert not lines_with(r"(create_server|\.bind|HTTPServer|GrpcServer|remote\.serve)\(.*[:,] ?[1-9]\d{3,4}\b(?!_)")


def test_nothing_is_tried_again() -> None:
    assert not lines_with(r"mark\.flaky|\breruns\b")
    assert "rerun" not in (ROOT / "pyproject.toml").read_text()


def test_nobody_else_may_be_silent() -> None:
    """Refuse assertions on all records: threads and garbage of earlier tests log, too."""
    assert not lines_with(r"assert not caplog\.|= caplog\.(records|messages)"), "choose the records that are meant"


def test_nothing_is_asserted_of_the_clock() -> None:
    found = [
        f"{name}:{node.lineno}"
        for name, node in nodes("|".join(CLOCKS))
        if isinstance(node, ast.Assert) and name not in COMPARE_TIMES
        if any(isinstance(part, ast.Attribute) and part.attr in CLOCKS for part in ast.walk(node))
    ]
    assert not found, "count operations, or compare the order of events"


def test_every_wait_has_patience() -> None:
    found = [
        f"{name}:{node.lineno}: {ast.unparse(node)[:60]}"
        for name, node in nodes(r"timeout=\d|\.(join|result|exception|communicate)\(\s*\d")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        for limit in limits(node.func.attr, node)
        if isinstance(limit, ast.Constant) and isinstance(limit.value, int | float)
        if 1 <= limit.value < SHORTEST_PATIENCE
    ]
    assert not found, "a busy machine may need more"


def limits(method: str, call: ast.Call) -> list[ast.expr]:
    """Return the seconds for which a call waits."""
    by_place = call.args[:1] if method in ("join", "result", "exception", "communicate") else []
    waits = method in ("join", "result", "exception", "communicate", "wait", "acquire", "get", "run")
    return [*by_place, *(word.value for word in call.keywords if waits and word.arg == "timeout")]
