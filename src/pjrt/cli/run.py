"""``pjrt run``: run a program on a device."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

import pjrt
import pjrt.ifrt
from pjrt import stablehlo
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, NotFoundError
from pjrt.api.shape_spec import format_shape
from pjrt.cli._console import Timing, echo, note_overwriting, print_facts, print_json, progress, readable
from pjrt.cli._differences import DIFFER, expect_option, print_differences, tolerance_options
from pjrt.cli._options import (
    cache_as_dict,
    cache_option,
    cache_outcome,
    call_options,
    complete_file,
    device_option,
    json_option,
    memory_limit_option,
)
from pjrt.cli._program import (
    STDIN,
    check_first,
    check_needs_no_infeed,
    printing_warnings,
    program_argument,
    read_model_file,
)
from pjrt.models.binding import Argument
from pjrt.models.inputs import files_of, make_arguments
from pjrt.models.model import Model
from pjrt.models.model_file import ModelFile
from pjrt.models.output_path import check_output_path, writing
from pjrt.models.profile import DeviceProfile, Event, Track, write_timeline
from pjrt.plugins import registry
from pjrt.plugins.registry import client_with_devices
from pjrt.stablehlo.facts.indexing import index_limits
from pjrt.system import FileStamp, file_stamp

if TYPE_CHECKING:
    from pjrt.api.plugin import Profiler
    from pjrt.artifacts.compilation_cache import CompilationCache
    from pjrt.host_memory.tolerance import Tolerance
    from pjrt.models.comparison.comparison import ResultDifference
    from pjrt.models.offloading.stages import OffloadPlan


# The results, in a file or on the terminal.

Array = np.ndarray[Any, Any]

SUFFIXES = (".npy", ".npz", ".safetensors")

_OPTION, _TIMELINE = "--output", "--timeline"
_LABELS = {"output": "written to"}


def check_results_path(path: str, count: int) -> None:
    """Check that results can be written to a path, before any work is done.

    Raises:
        InvalidArgumentError: the suffix is unsupported, the path is a folder, or a ``.npy`` file would have several
            results.
        NotFoundError: the folder does not exist.
    """
    check_output_path(path, SUFFIXES, option=_OPTION)
    if Path(path).suffix == ".npy" and count != 1:
        raise InvalidArgumentError(
            f"{_OPTION} {path}: a .npy file holds one array, the program has {count} results; use .npz"
        )


def write_results(path: str, results: Mapping[str, Array]) -> None:
    """Write results by name: one to a ``.npy`` file, any number to other files.

    Raises:
        InvalidArgumentError: the file cannot be written.
    """
    named = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in results.items()}
    with writing(path, option=_OPTION):
        if path.endswith(".npy"):
            np.save(path, next(iter(results.values())), allow_pickle=False)
        elif path.endswith(".npz"):
            np.savez(path, allow_pickle=False, **named)
        else:
            _write_safetensors(path, named)


def _write_safetensors(path: str, named: dict[str, Array]) -> None:
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import save_file
    except ImportError as error:
        raise NotFoundError(
            "writing .safetensors needs the package of that name: pip install 'pjrt[safetensors]'"
        ) from error
    try:
        save_file(named, path)
    except SafetensorError as error:
        types = ", ".join(sorted({ElementType.of(array.dtype).name.lower() for array in named.values()}))
        raise InvalidArgumentError(
            f"--output {path}: a .safetensors file cannot hold these results ({types}): {error}; use .npz"
        ) from error


def describe(result: Array) -> str:
    """Return a result's type and first values on one line, and how many of its values are NaN or infinite."""
    flat = np.asarray(result).reshape(-1)[:6]
    values = ", ".join(_format(v) for v in flat)
    more = ", …" if result.size > flat.size else ""
    odd = ", ".join(f"{count} {name}" for name, count in not_finite(result).items() if count)
    note = f" ({odd} of {result.size})" if odd else ""
    return f"{format_shape(ElementType.of(result.dtype), result.shape)} [{values}{more}]{note}"


def not_finite(result: Array) -> dict[str, int]:
    """Return how many values of a result are NaN, and how many are infinite."""
    kind = ElementType.of(result.dtype)
    if not (kind.is_floating or kind.is_complex):
        return {"NaN": 0, "infinite": 0}
    is_nan = np.isnan(result)
    return {"NaN": int(is_nan.sum()), "infinite": int((np.isinf(result) & ~is_nan).sum())}


def _format(value: Any) -> str:
    kind = ElementType.of(value.dtype)
    if kind is ElementType.PRED:
        return str(bool(value)).lower()
    if kind.is_integer:
        return str(int(value))
    return f"{complex(value):.6g}" if kind.is_complex else f"{float(value):.6g}"


# The command.

_EXAMPLES = """
\b
Examples:
  pjrt run model.stablehlo --input image.npy
  pjrt run model.mlir -i weights.safetensors -i images.npy -o scores.npz
  pjrt run model.mlir --input random:0 --repeat 100
  pjrt run model.mlir --input zeros --device reference --json
  pjrt run model.mlir --input zeros --profile --timeline run.json
  pjrt run model.mlir -i zeros --device ./mydevice.py:make_client --watch
  pjrt run sharded.mlir -i random:0 -o whole.npz
  pjrt run large.mlir -i weights.safetensors -i x.npy --memory-limit 2GiB
"""


@click.command(epilog=_EXAMPLES)
@program_argument
@device_option
@call_options
@click.option(
    "--output",
    "-o",
    metavar="PATH",
    shell_complete=complete_file,
    help="Write the results to a .npy, .npz or .safetensors file.",
)
@expect_option
@tolerance_options
@click.option("--fail-on-nan", is_flag=True, help="End with exit code 1 if a result has NaN or infinite values.")
@memory_limit_option
@click.option("--repeat", type=click.IntRange(min=1), metavar="N", help="Run N times more and print median and spread.")
@click.option("--profile", is_flag=True, help="Print the time per operation.")
@click.option(
    "--timeline",
    metavar="PATH",
    shell_complete=complete_file,
    help="Write when each operation ran to a .json file, which ui.perfetto.dev opens.",
)
@cache_option
@json_option
@click.option(
    "--watch",
    is_flag=True,
    help="Run again when PROGRAM, a file of --input or the device's source or library is saved, until Ctrl-C.",
)
def run(program: str, device: str | None, inputs: tuple[str, ...], watch: bool, **how: Any) -> None:
    """Compile PROGRAM and run it.

    PROGRAM is StableHLO text, bytecode, a portable artifact or an HLO proto. One for several partitions or replicas
    runs on that many devices, which are made where the device can make them (as with -O num_devices=8): inputs and
    results are whole arrays, which its shardings cut.
    """
    if not watch:
        _run(program, device, inputs, **how)
        return
    if program == STDIN:
        raise click.UsageError("expected a file as PROGRAM with --watch, found -, which is read once")
    name = registry.default() if device is None else device
    command = [argument for argument in sys.argv[1:] if argument != "--watch"]
    _run_on_change(command, lambda: [Path(program), *files_of(inputs), *registry.files(name)])


def _run(
    program: str,
    device: str | None,
    inputs: tuple[str, ...],
    *,
    options: dict[str, Any],
    shapes: dict[str, tuple[int, ...]] | None,
    partitioning: pjrt.CompileOptions,
    output: str | None,
    expect: str | None,
    tolerance: Tolerance,
    fail_on_nan: bool,
    memory_limit: int | None,
    repeat: int | None,
    profile: bool,
    timeline: str | None,
    cache: CompilationCache | None,
    as_json: bool,
) -> None:
    check_first([device], inputs)
    for path, suffixes, option in ((output, SUFFIXES, _OPTION), (timeline, (".json",), _TIMELINE)):
        if path is not None:
            check_output_path(path, suffixes, option=option)
            note_overwriting(path)
    file = read_model_file(program, device, options)
    with progress("reading the program"):
        if output is not None:
            check_results_path(output, len(file.results))
        with printing_warnings():
            given = make_arguments(file.parameters, inputs, shapes)
        _warn_of_indices(file, [each.array for each in given])
    count = partitioning.completed(file.partitioning).partitioning.num_devices
    measure = _Measure.of(device) if profile or timeline is not None else None
    make = client_with_devices if measure is None else measure.client
    with make(device, count, options) as client:
        arrays = [each.array for each in given]
        with progress(f"compiling for {client.platform_name}"):
            begin = time.perf_counter()
            run_once: _Run | _StagedRun
            if memory_limit is None:
                run_once = _Run(Model(file, client, compile_options=partitioning, cache=cache), arrays)
            else:
                run_once = _StagedRun(file, client, partitioning, cache, arrays, memory_limit)
            compile_seconds = time.perf_counter() - begin
        check_needs_no_infeed(file)  # after the device, which may have a reason of its own to refuse it
        with progress("running"), contextlib.nullcontext() if measure is None else measure:
            outputs, first = run_once()
            results = run_once.values(outputs)
            del outputs
            times = [run_once()[1] for _ in range(repeat or 0)]
        timing = Timing(compile_seconds, first, times)
        if output is not None:
            write_results(output, results)
        differences = None
        if expect is not None:
            from pjrt.models.comparison.comparison import differences_from_file

            differences = differences_from_file(results, expect, tolerance)
        if measure is not None and timeline is not None:
            write_timeline(measure.tracks(), timeline, option=_TIMELINE)
        measured = measure.profile if measure is not None and profile else None
        matched = {str(p): each.matched_by_type for p, each in zip(file.parameters, given, strict=True)}
        plan = run_once.plan
        files = {"output": output, "timeline": timeline}
        _report(client.platform_name, results, timing, files, as_json, measured, matched, differences, cache, plan)
        is_odd = fail_on_nan and any(any(not_finite(result).values()) for result in results.values())
        if is_odd or not all(each.difference.agrees for each in differences or ()):
            sys.exit(DIFFER)


_OF_INDICES = frozenset((ElementType.S32, ElementType.S64, ElementType.U32, ElementType.U64))


def _warn_of_indices(file: ModelFile, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    """Print a warning for an input whose elements choose rows that are not there, such as identifiers of tokens."""
    integers = [
        (parameter, parameter.argument, array)
        for parameter, array in zip(file.parameters, arrays, strict=True)
        if parameter.element_type in _OF_INDICES and parameter.argument is not None and array.size
    ]
    if not integers or file.program is None:
        return
    with contextlib.suppress(pjrt.PjrtError):  # a program that cannot be read is the device's to judge
        limits = index_limits(stablehlo.parse(file.program_for("cpu")))
        for parameter, argument, array in integers:
            limit, low, high = limits.get(argument), int(array.min()), int(array.max())
            if limit is not None and not -limit <= low <= high < limit:
                wrong = high if high >= limit else low
                echo(
                    f"pjrt: warning: {parameter} chooses among {limit} rows: expected 0 to {limit - 1}, found {wrong}; "
                    "devices take another row, or return NaN",
                    err=True,
                )


class _Run:
    """Runs of an executable on the same arguments, which are put on the devices outside of the time of a run."""

    plan = None

    def __init__(self, model: Model, arrays: Sequence[Any]) -> None:
        self._model = model
        self._arguments = model.fitted(arrays)
        self._executable = model.compile([array.shape for array in self._arguments])
        self._placed = self._arguments

    def __call__(self) -> tuple[list[pjrt.ifrt.Array], float]:
        """Run the program once; return its results when they are ready, and the seconds."""
        # At first all arguments are put on the devices, later those that the last run donated.
        pairs = zip(self._arguments, self._placed, strict=True)
        absent = [whole if isinstance(placed, np.ndarray) or placed.is_deleted else placed for whole, placed in pairs]
        self._placed = self._model.placed(self._executable, absent)
        _wait(self._placed)
        begin = time.perf_counter()
        outputs = self._model.run(self._executable, self._placed)
        _wait(outputs)
        return outputs, time.perf_counter() - begin

    def values(self, results: Sequence[pjrt.ifrt.Array]) -> Mapping[str, Array]:
        """Return the values of results by name."""
        return self._model.values(self._executable, results)


class _StagedRun:
    """Runs of a program in stages: arguments stay in the host's memory and come when they are needed.

    Arguments that the program donates are put on the device with each run.
    """

    def __init__(
        self,
        file: ModelFile,
        client: pjrt.Client,
        options: pjrt.CompileOptions,
        cache: CompilationCache | None,
        arrays: Sequence[Any],
        memory_limit: int,
    ) -> None:
        pairs = list(zip(file.parameters, arrays, strict=True))
        weights = {parameter: array for parameter, array in pairs if not parameter.donated}
        self._model = pjrt.offload(
            file, client, weights=weights, memory_limit=memory_limit, compile_options=options, cache=cache
        )
        self._others = [array for parameter, array in pairs if parameter.donated]
        self.plan = self._model.plan([np.shape(array) for array in self._others])

    def __call__(self) -> tuple[list[pjrt.ifrt.Array], float]:
        """Run the program once; return its results, and the seconds."""
        begin = time.perf_counter()
        outputs = self._model.execute(self._others)
        _wait(outputs)
        return outputs, time.perf_counter() - begin

    def values(self, results: Sequence[pjrt.ifrt.Array]) -> Mapping[str, Array]:
        """Return the values of results by name."""
        return self._model.values(results)


def _wait(arrays: Sequence[Argument]) -> None:
    for array in arrays:
        if isinstance(array, pjrt.ifrt.Array):
            array.ready().result()


class _Measure:
    """The time of operations in runs: by the plugin's profiler, or by a client that adds it up itself.

    Attributes:
        profile: the time by operation, after the runs.
    """

    profile: Any = None

    def __init__(self, profiler: Profiler | None) -> None:
        self._profiler = profiler

    @staticmethod
    def of(device: str | None) -> _Measure:
        """Return the measure of a device."""
        from pjrt.api.protobuf import message_class  # here: protobuf takes long to import

        plugin = pjrt.load_plugin(registry.default() if device is None else device)
        # Python's own calls are left out: they would be recorded at a cost, and are not the program's.
        options = message_class("ProfileOptions")(version=1, host_tracer_level=2, enable_hlo_proto=True)
        try:
            return _Measure(plugin.profiler(options.SerializeToString()))
        except pjrt.UnimplementedError:
            return _Measure(None)

    def client(self, device: str | None, count: int, options: dict[str, Any]) -> pjrt.Client:
        """Return the client to run on.

        Raises:
            UnimplementedError: it has no way to measure.
        """
        if self._profiler is not None:
            return client_with_devices(device, count, options)
        try:
            client = client_with_devices(device, count, {**options, "profile": True})
        except (InvalidArgumentError, TypeError):  # TypeError: a function that makes clients and takes no such option
            client = client_with_devices(device, count, options)
        self.profile = getattr(client, "profile", None)
        if self.profile is None:
            client.close()
            name = device or client.platform_name
            raise pjrt.UnimplementedError(
                f"--profile, --timeline: the device '{name}' has no profiler, and does not add up the time per "
                "operation; use --device cpu or --device reference"
            )
        self.profile.runs = []
        return client

    def __enter__(self) -> None:
        if self._profiler is not None:
            self._profiler.start()

    def __exit__(self, *error: object) -> None:
        if self._profiler is not None:
            self._profiler.stop()
            self.profile = DeviceProfile.of(self._profiler.collect())

    def tracks(self) -> Sequence[Track]:
        """Return when operations ran."""
        if isinstance(self.profile, DeviceProfile):
            return self.profile.tracks
        threads: dict[str, list[Event]] = {}
        for run in self.profile.runs:
            begin, end = (round(seconds * 1e12) for seconds in (run.begin, run.end))
            threads.setdefault(run.thread, []).append(Event(run.name, begin, end - begin, module=run.location))
        return [Track("operations", thread, events) for thread, events in threads.items()]


def _report(
    platform: str,
    results: Mapping[str, Array],
    timing: Timing,
    files: Mapping[str, str | None],
    as_json: bool,
    profile: Any,
    matched_by_type: Mapping[str, str],
    differences: Sequence[ResultDifference] | None,
    cache: CompilationCache | None,
    plan: OffloadPlan | None,
) -> None:
    for parameter, place in matched_by_type.items():
        if place:
            echo(f"pjrt: {place} is used for {parameter}, the only one of its type and shape", err=True)
    if as_json:
        described = [
            {
                "name": name,
                "element_type": pjrt.ElementType.of(a.dtype).name,
                "shape": list(a.shape),
                **{kind.lower(): count for kind, count in not_finite(a).items() if count},
            }
            for name, a in results.items()
        ]
        extra = {} if profile is None else {"profile": profile.as_dict()}
        if differences is not None:
            extra["expected"] = [each.as_dict() for each in differences]
        if cache is not None:
            extra["cache"] = cache_as_dict(cache)
        if plan is not None:
            extra["stages"] = plan.as_dict()
        print_json({"device": platform, "results": described, **files, **timing.as_dict(), **extra})
        return
    facts: list[tuple[str, object]] = [(name, describe(array)) for name, array in results.items()]
    facts += [(_LABELS.get(name, name), path) for name, path in files.items() if path is not None]
    facts += [("device", platform), ("compile", readable(timing.compile))]
    if cache is not None:
        facts.append(("cache", cache_outcome(cache_as_dict(cache))))
    facts.append(("first run", readable(timing.first)))
    if timing.repeats:
        low, median, high = timing.spread()
        spread = f"median {readable(median)}, 10% to 90% within {readable(low)} to {readable(high)}"
        facts.append((f"{len(timing.repeats)} runs", spread))
    if plan is not None:
        facts.append(("in stages", plan.summary))
    print_facts(facts)
    if differences is not None:
        print_differences(differences)
    if profile is not None:
        echo(f"\n{profile.table()}")


# ``--watch``: the command in a subprocess, and again whenever a file is saved.

_POLL_SECONDS = 0.2
_SETTLING_SECONDS = 0.05
_PATIENCE_SECONDS = 2.0


def _run_on_change(command: Sequence[str], files: Callable[[], Iterable[Path]]) -> None:
    """Run a ``pjrt`` command until Ctrl-C, again in a new subprocess whenever a file has changed.

    A run that is not done when a file changes is ended. A new process loads the new code of a device in any language,
    and a device that crashes ends only its own process.

    Args:
        command: the command's arguments, without ``pjrt``.
        files: called before each run; returns the files to watch.
    """
    from pjrt.system.python_process import module_command, module_environment  # most runs are of this process

    child: subprocess.Popen[bytes] | None = None
    try:
        while True:
            watched = _Watched(files())
            child = subprocess.Popen(module_command("pjrt", *command), env=module_environment())
            changed = _until_change(child, watched)
            _end(child)
            _say(f"changed: {', '.join(map(str, changed))}")
    except KeyboardInterrupt:
        _say("")
    finally:
        if child is not None:
            _end(child)


def _until_change(child: subprocess.Popen[bytes], watched: _Watched) -> list[Path]:
    """Wait until files have changed, and return them; print when the run has ended meanwhile."""
    is_running = True
    while not (changed := watched.changed()):
        if is_running and child.poll() is not None:
            is_running = False
            if child.returncode < 0:
                _say(f"the run was ended by {signal.Signals(-child.returncode).name}")
            _say(f"watching {len(watched.seen)} files; Ctrl-C ends it")
        time.sleep(_POLL_SECONDS)
    return changed


class _Watched:
    """Files with their stamps at the start of a run."""

    def __init__(self, files: Iterable[Path]) -> None:
        self.seen: dict[Path, FileStamp | None] = {path: file_stamp(path) for path in files}

    def changed(self) -> list[Path]:
        """Return the files that have changed, once their writer has finished; empty if none have."""
        now = self._stamps()
        if now != self.seen:
            now = self._settled(now)
        return sorted(path for path in now if now[path] != self.seen[path])

    def _settled(self, now: dict[Path, FileStamp | None]) -> dict[Path, FileStamp | None]:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            time.sleep(_SETTLING_SECONDS)
            before, now = now, self._stamps()
            # An editor may remove the old file before it writes the new one.
            is_whole = all(now[path] for path, stamp in self.seen.items() if stamp)
            if now == before and (is_whole or time.monotonic() >= deadline):
                return now

    def _stamps(self) -> dict[Path, FileStamp | None]:
        return {path: file_stamp(path) for path in self.seen}


def _end(child: subprocess.Popen[bytes]) -> None:
    """Terminate a run, and kill it if it has not ended after some seconds."""
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_PATIENCE_SECONDS)
    child.kill()
    child.wait()


def _say(text: str) -> None:
    echo(text, err=True)
