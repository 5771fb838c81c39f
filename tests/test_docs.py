"""The pages that a newcomer reads first: their Python runs, and their commands print what the pages show."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from pathlib import Path

import click
import pytest
import torch_folders

from pjrt import stablehlo
from pjrt.cli import main

ROOT = Path(__file__).parents[1]
DIGITS = ROOT / "examples" / "digits"
PATH = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
ENVIRONMENT = {**os.environ, "COLUMNS": "200", "TF_CPP_MIN_LOG_LEVEL": "2", "PATH": PATH}


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of code of a page, without the indentation of a list around them."""
    matches = re.findall(rf"^( *)```{language}\n(.*?)^ *```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", code, flags=re.MULTILINE) for indent, code in matches]


def expected_lines(code: str) -> list[str]:
    """Return the comments behind ``print``, which show the output."""
    return re.findall(r"\bprint\(.*\)+\s+# (.*)$", code, re.MULTILINE)


def assert_like(printed: str, expected: str) -> None:
    """Compare two texts; ``…`` in the expected one stands for any."""
    pattern = ".*".join(re.escape(part) for part in expected.split("…"))
    assert re.fullmatch(pattern, printed), f"the page shows {expected!r}, the output is {printed!r}"


PAGES = [
    *(
        pytest.param(page, marks=pytest.mark.full)
        for page in (
            "README.md",
            "docs/index.md",
            "docs/api.md",
            "docs/quickstart.md",
            "docs/programs.md",
            "docs/compare.md",
            "docs/devices/cpu.md",
            "docs/devices/iree.md",
            "docs/hardware_without_jax.md",
            "docs/plugins.md",
            "docs/ifrt.md",
            "docs/models.md",
            "docs/capability.md",
            "docs/lowering.md",
            "docs/layers.md",
            "docs/remote.md",
        )
    ),
    pytest.param("docs/frameworks/torch.md", marks=pytest.mark.torch),
]
PRINTED_LINES = {
    "docs/index.md": 1,
    "docs/hardware_without_jax.md": 1,
    "docs/compare.md": 6,
    "docs/quickstart.md": 13,
    "docs/plugins.md": 3,
    "docs/ifrt.md": 34,
    "docs/models.md": 15,
    "docs/lowering.md": 5,
    "docs/capability.md": 14,
    "docs/remote.md": 3,
    "docs/frameworks/torch.md": 10,
}
"""The pages that show all of their output, and how many lines they print."""


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page(page: str, tmp_path: Path) -> None:
    program = stablehlo.read(blocks("docs/cli.md", "mlir")[0])
    (tmp_path / "model.mlirbc").write_bytes(stablehlo.serialize(program, stablehlo.current_version()).code)
    torch_folders.write_mlp(tmp_path / "layer")
    shutil.copytree(ROOT / "tests" / "stablehlo" / "data" / "saved_model", tmp_path / "saved_model")
    code = "\n".join(blocks(page, "python"))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, env=ENVIRONMENT, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    printed = done.stdout.splitlines()
    expected = expected_lines(code)
    if page in PRINTED_LINES:
        assert len(printed) == len(expected) == PRINTED_LINES[page]
        for line, comment in zip(printed, expected, strict=True):
            assert_like(line, comment)


@pytest.mark.full
@pytest.mark.timeout(280)
def test_the_page_from_a_model_to_a_server(tmp_path: Path) -> None:
    page = "docs/serve_model.md"
    for package in ("flax", "equinox", "aiohttp"):
        pytest.importorskip(package)
    code = blocks(page, "python")
    first = next(number for number, block in enumerate(code) if "urllib" in block)
    asked = [each for each in code[first:] if "tritonclient" not in each or importlib.util.find_spec("tritonclient")]
    assert len(code) - first == 2

    def run(blocks_: list[str]) -> None:
        together = "\n".join(blocks_)
        done = subprocess.run(
            [sys.executable, "-c", together], capture_output=True, text=True, timeout=120, env=ENVIRONMENT, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr[-3000:]
        for line, comment in zip(done.stdout.splitlines(), expected_lines(together), strict=True):
            assert_like(line, comment)

    run(code[:first])
    ((command, shown),) = sessions(page)
    place = "127.0.0.1:8000"
    arguments = [sys.executable, "-m", *command.split(), "--address", "127.0.0.1:0", "--max-batch", "4"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd=tmp_path) as server:
        assert server.stdout is not None
        try:
            lines = [server.stdout.readline().strip() for _ in shown]
            actual = re.search(r"127\.0\.0\.1:\d+", "\n".join(lines))
            assert actual is not None, lines
            assert sorted(line.replace(actual[0], place) for line in lines) == sorted(shown)
            compiled = [server.stdout.readline() for _ in (1, 2, 4)]
            assert all(line.startswith("compiled 'jit_classify' for image=") for line in compiled), compiled
            url = f"http://{actual[0]}/v2/health/ready"
            while True:  # it is ready just after the last line
                with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(url, timeout=60):
                    break
            run([each.replace(place, actual[0]) for each in asked])
        finally:
            server.terminate()


def sessions(page: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a page, each with the lines that it prints there."""
    commands = []
    for block in blocks(page, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *output = part.splitlines()
            commands.append((command, [line for line in output if line.strip()]))
    return commands


def shape_of(line: str) -> list[str]:
    """Return a line without what differs from run to run: numbers, units, versions, lengths of rules and bars.

    Which difference of two plugins is the first one depends on their versions.
    """
    line = re.sub(r"such as \S+: .* in the recording, .* here", "such as …", line)
    line = re.sub(r"-?\d[\w.+:-]*|\b(ms|s|µs|ns)\b|[─█░]+", "#", line)
    return re.sub(r"(# )+", "# ", line).split()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder in which the page's commands are run, with the files that they use."""
    for name in ("digits.stablehlo", "weights.npz", "images.npy"):
        (tmp_path / name).write_bytes((DIGITS / name).read_bytes())
    for name, text in zip(("add.mlir", "sharded.mlir"), blocks("docs/cli.md", "mlir"), strict=True):
        (tmp_path / name).write_text(text)
    (tmp_path / "add.rec").write_bytes((ROOT / "tests" / "layers" / "data" / "add.rec").read_bytes())
    device = 'import pjrt\n\n\ndef make_client(**options):\n    return pjrt.client("reference", **options)\n'
    (tmp_path / "mydevice.py").write_text(device)
    return tmp_path


def name_of(value: object) -> str:
    return value if isinstance(value, str) else ""


@pytest.mark.full
@pytest.mark.parametrize(("command", "output"), sessions("docs/cli.md"), ids=name_of)
def test_a_command_of_the_page(command: str, output: list[str], folder: Path) -> None:
    assert command.startswith("pjrt ")
    given = ""
    fewer = command.replace("--count 200", "--count 20")  # the page shows what is worth a look; the form is the same
    for step in fewer.split(" | "):  # the output of one command is the input of the next
        done = subprocess.run(
            [sys.executable, "-m", *step.split()],
            input=given,
            capture_output=True,
            text=True,
            timeout=280,
            env=ENVIRONMENT,
            cwd=folder,
        )
        given = done.stdout
    refused = output[0].startswith("pjrt: error: ")
    assert done.returncode == (2 if refused else 0), done.stderr
    printed = [line for line in (done.stderr if refused else done.stdout).splitlines() if line.strip()]
    if refused:
        assert_like("\n".join(printed), "\n".join(output))
    elif command == "pjrt info":
        # What is installed differs; what is asked does not, but for the variables that happen to be set.
        asked = [line.split()[0] for line in printed]
        assert [name for name in asked if name != "environment"] == [line.split()[0] for line in output]
    else:
        if output[-1] == "…":
            output.pop()
            del printed[len(output) :]
        assert [shape_of(line) for line in printed] == [shape_of(line) for line in output]


README = [
    pytest.param(command, output, marks=pytest.mark.vendor if "tpu:" in command else pytest.mark.full)
    for command, output in sessions("README.md")
]


@pytest.mark.parametrize(("command", "output"), README, ids=name_of)
def test_a_command_of_the_readme(command: str, output: list[str]) -> None:
    program, *arguments = command.split()
    launcher = [sys.executable, *(["-m", "pjrt"] if program == "pjrt" else [])]
    done = subprocess.run(
        [*launcher, *arguments], capture_output=True, text=True, timeout=240, env=ENVIRONMENT, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert [shape_of(line) for line in done.stdout.splitlines()] == [shape_of(line) for line in output]


def test_the_readme_shows_three_commands() -> None:
    assert [command.split()[:2] for command, _ in sessions("README.md")] == [
        ["pjrt", "run"],
        ["pjrt", "check"],
        ["python", "examples/first_device/device.py"],
    ]


def test_every_option_of_every_command_is_on_the_page() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    context = click.Context(main)
    assert sorted(re.findall(r"^\| \[`pjrt ([\w-]+)`\]\(#\1\) \|", page, re.MULTILINE)) == main.list_commands(context)
    for name in main.list_commands(context):
        section = re.search(rf"^## {name}\n(.*?)(?=^## )", page, re.DOTALL | re.MULTILINE)
        assert section, f"docs/cli.md has no section {name}"
        command = main.get_command(context, name)
        assert command is not None
        inner = command.commands.values() if isinstance(command, click.Group) else ()
        parameters = [each for one in (command, *inner) for each in one.params]
        here = {option for p in parameters if isinstance(p, click.Option) for option in (*p.opts, *p.secondary_opts)}
        rows = re.findall(r"^\| (`-.*?) \|", section[1], re.MULTILINE)
        listed = {option for row in rows for option in re.findall(r"(?<![\w-])--?[\w-]+", row)}
        assert listed == here, name


def test_the_readme_has_two_commands() -> None:
    first, second = (block.strip() for block in blocks("README.md", "console") if not block.startswith("$ "))
    assert first == 'pip install ".[xla]" && python examples/digits/run.py'
    assert second == 'pip install -e ".[test]" && pytest -n auto'


SITE = (ROOT / "mkdocs.yml").read_text()
PAGES_OF_DOCS = sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))


def groups() -> dict[str, list[str]]:
    """Return the pages of each group of the menu."""
    menu = re.findall(r"^  - (.+):\n((?:      - .*\n)+)", SITE.partition("\nnav:\n")[2], re.MULTILINE)
    return {group: re.findall(r": (\S+\.md)$", pages, re.MULTILINE) for group, pages in menu}


def test_every_page_of_the_menu_is_there() -> None:
    pages = [page for group in groups().values() for page in group]
    assert len(pages) > 10
    assert sorted(pages) == PAGES_OF_DOCS


@pytest.mark.parametrize("group", groups())
def test_a_group_begins_with_whom_it_is_for_and_leads_to_its_pages(group: str) -> None:
    first, *others = groups()[group]
    page = ROOT / "docs" / first
    begin = rf"^(?:> \*\*{group}\*\* is for you|\| \*\*{group}\*\* \|)"
    (said,) = re.findall(rf"{begin}(?:.|\n(?=>))*", page.read_text(), re.MULTILINE)
    linked = {(page.parent / link).resolve() for link in re.findall(r"\]\((\S+\.md)\)", said)}
    assert {(ROOT / "docs" / other).resolve() for other in others} <= linked


@pytest.mark.parametrize("page", PAGES_OF_DOCS)
def test_names_for_docstrings_are_explained_in_the_plain_file(page: str) -> None:
    before, name, _ = (ROOT / "docs" / page).read_text().partition("\n::: ")
    assert not name or ("`:::`" in before and "python -m pydoc " in before)


def places(page: str) -> set[str]:
    """Return the places of a page that a link may name: its headings, as the site writes them."""
    text = re.sub(r"^ *```.*?^ *```", "", (ROOT / "docs" / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


OLD_ADDRESSES = dict(re.findall(r"^ {8}(\S+\.md): (\S+)$", SITE, re.MULTILINE))


@pytest.mark.parametrize("old", OLD_ADDRESSES)
def test_an_old_address_leads_to_where_its_text_is(old: str) -> None:
    page, _, place = OLD_ADDRESSES[old].partition("#")
    assert old not in PAGES_OF_DOCS
    assert page in PAGES_OF_DOCS
    assert place in places(page)


def test_every_page_that_was_removed_has_an_address_still() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("a source distribution has no history")
    command = ["git", "log", "--diff-filter=D", "--no-renames", "--name-only", "--format=", "--", "docs/*.md"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    removed = {name.removeprefix("docs/") for name in done.stdout.split()}
    assert removed - set(PAGES_OF_DOCS) <= set(OLD_ADDRESSES)


@pytest.mark.parametrize(
    "package", ["pjrt", "pjrt.distributed", "pjrt.host", "pjrt.ifrt", "pjrt.models", "pjrt.plugins", "pjrt.stablehlo"]
)
def test_the_pages_document_every_public_name(package: str) -> None:
    shown = set()
    pages = "\n".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    for entry in re.findall(r"^::: (\S+)$", pages, re.MULTILINE):
        package_name, _, name = entry.rpartition(".")
        owner = importlib.import_module(package_name)
        entity = getattr(owner, name) if hasattr(owner, name) else importlib.import_module(entry)
        shown |= {id(member) for member in vars(entity).values()} if inspect.ismodule(entity) else {id(entity)}
    module = importlib.import_module(package)
    public = {name: getattr(module, name) for name in module.__all__ if not name.startswith("__")}
    missing = [name for name, entity in public.items() if not inspect.ismodule(entity) and id(entity) not in shown]
    assert not missing, "no page in docs documents these names"


def test_the_tests_that_pages_name_are_there() -> None:
    """Tables of what is promised name the test of each row."""
    there = {path.name for path in Path(__file__).parent.rglob("test_*.py")}
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "SECURITY.md"]
    named = {name for page in pages for name in re.findall(r"`(test_\w+\.py)`", page.read_text())}
    assert named
    assert named <= there
