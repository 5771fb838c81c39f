"""Completion in the shell: by click's own helpers, and in a real bash."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from in_process import pjrt

from pjrt import plugins
from pjrt.cli import main


def completed(*words: str) -> list[str]:
    """Return what completes the last word; a file's completion as FILES."""
    complete = ShellComplete(main, {}, "pjrt", "_PJRT_COMPLETE")
    items = complete.get_completions(list(words[:-1]), words[-1])
    return ["FILES" if item.type == "file" else str(item.value) for item in items]


def test_subcommands_and_options() -> None:
    assert completed("in") == ["info", "inspect"]
    assert "--device" in completed("run", "--d")
    assert completed("check", "--effort", "o") == ["ops"]


@pytest.mark.parametrize("command", ["run", "check", "bench"])
def test_devices(command: str) -> None:
    assert {"cpu", "reference"} <= set(completed(command, "--device", ""))
    assert completed(command, "model.mlir", "-d", "refer") == ["reference"]
    assert completed(command, "-d", "./my") == ["FILES"]


def test_names_of_plugins() -> None:
    for command in ("devices", "plugins", "capabilities"):
        assert completed(command, "refer") == ["reference"]


@pytest.fixture
def abacus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A plugin in a folder that declares topologies; it is not loaded."""
    folder = tmp_path / "plugins"
    folder.mkdir(mode=0o755)
    (folder / "pjrt-plugin-abacus.so").write_bytes(b"")
    facts = {"topologies": {"a1": "1x1, 2x2 and so on", "b2": "1x1x8: slices x hosts x beads"}}
    (folder / "pjrt-plugin-abacus.json").write_text(json.dumps(facts))
    monkeypatch.setenv("PJRT_PLUGIN_LIBRARY_PATH", str(folder))
    plugins.refresh()
    yield
    monkeypatch.undo()
    plugins.refresh()


@pytest.mark.usefixtures("abacus")
@pytest.mark.parametrize("command", ["check", "compile"])
def test_topologies(command: str) -> None:
    assert completed(command, "-t", "abacus:a1") == ["abacus:a1", "abacus:a1:1x1", "abacus:a1:2x2"]
    assert "abacus:b2:1x1x8" in completed(command, "--topology", "aba")
    assert completed(command, "-t", "/path") == ["FILES"]


@pytest.mark.usefixtures("abacus")
def test_the_last_of_several_topologies() -> None:
    assert completed("compile", "-t", "abacus:a1,abacus:a1:2") == ["abacus:a1,abacus:a1:2x2"]


def test_files() -> None:
    assert completed("run", "mod") == ["FILES"]
    assert completed("run", "-i", "") == ["FILES"]
    assert completed("run", "-i", "ra") == ["random:0"]
    assert completed("run", "-o", "x") == ["FILES"]


def test_every_file_and_folder_is_completed() -> None:
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        for option in command.params:
            if option.metavar in ("PATH", "FILE", "DIR"):
                assert completed(name, option.opts[0], "x") == ["FILES"], (name, option.opts)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed(shell: str) -> None:
    done = pjrt("--completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"_PJRT_COMPLETE={shell}_complete" in done.stdout
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    assert f"pjrt --completion {shell} > ~/" in page


@pytest.mark.full
def test_the_tab_key_loads_no_compiler() -> None:
    code = (
        "import sys\nfrom pjrt.cli import main\n"
        "try:\n    main(prog_name='pjrt')\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('jax', 'jaxlib', 'torch', 'grpc', 'iree') if name in sys.modules])"
    )
    words = {"_PJRT_COMPLETE": "bash_complete", "COMP_WORDS": "pjrt run -d ref", "COMP_CWORD": "3"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **words})
    assert done.stdout.splitlines() == ["plain,reference", "[]"], done.stderr


@pytest.mark.full
@pytest.mark.usefixtures("abacus")
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_in_a_real_bash(tmp_path: Path) -> None:
    """The line of docs/cli.md, and what bash does when the user presses the tab key."""
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    line = 'eval "$(pjrt --completion bash)"'
    assert line in page
    presses = [("pjrt", "run", "--device", "refer"), ("pjrt", "check", "-t", "ab"), ("pjrt", "insp")]
    script = [line]
    for words in presses:
        script += [
            f"COMP_WORDS=({' '.join(words)}) COMP_CWORD={len(words) - 1} COMPREPLY=()",
            "$(complete -p pjrt | sed 's/.*-F \\([^ ]*\\).*/\\1/') pjrt",
            'echo "${COMPREPLY[@]}"',
        ]
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "pjrt"
    command.write_text(f"#!{sys.executable}\nfrom pjrt.cli import main\nmain(prog_name='pjrt')\n")
    command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    device, topology, command_name = done.stdout.splitlines()
    assert device == "reference"
    assert "abacus:a1:2x2" in topology.split()
    assert command_name == "inspect"
