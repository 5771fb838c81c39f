"""The summary of a trace, against programs whose numbers are known."""

from __future__ import annotations

from pathlib import Path

from traced import TracedRun, run_traced

from pjrt.layers.trace.trace_views import summarize


def test_the_known_run(known_run: TracedRun) -> None:
    summary = summarize(known_run.trace)
    assert f">{len(known_run.trace.calls)} in {len(known_run.trace.threads)} threads<" in known_run.trace._repr_html_()
    assert (summary.compilations, summary.buffers, summary.live_buffers) == (2, 8, 0)
    assert (summary.bytes_to_device, summary.bytes_to_host, summary.bytes_between_devices) == (4 * 16, 4 * 16, 0)
    # Three arguments, and the result of the first execution, are alive at once.
    assert (summary.peak_buffers, summary.peak_bytes, summary.buffers_without_size) == (4, 4 * 16, 0)
    assert [(program.name, program.executions) for program in summary.programs] == [("double", 3), ("broken", 1)]
    calls = {row.name: row for row in summary.functions}
    assert calls["PJRT_Client_Compile"].calls == 3
    assert calls["PJRT_Client_Compile"].errors == 1
    assert calls["PJRT_LoadedExecutable_Execute"].calls == 4
    assert summary.calls == sum(row.calls for row in summary.functions)
    assert all(0 <= row.own <= row.total and row.median <= row.longest <= row.total for row in summary.functions)
    assert summary.unfinished == []
    assert summary.remarks == []


def test_donated_arguments_are_released(tiny_library: Path, tmp_path: Path) -> None:
    """A program that reuses its argument: of ten executions in a chain only one buffer lives at a time."""
    code = """
made = TinyProgram("chain")
x = made.parameter("f32[4]")
chain = client.compile(pjrt.Program(made.result(made.let("add", x, x), alias=x).code, format="tiny"))
buffers = [client.buffer_from_host(X)]
for _ in range(10):
    buffers += chain(buffers[-1])
print(np.asarray(buffers[-1]).tolist())
other = client.buffer_from_host(np.zeros(1000, np.int8))
copy = other.copy_to(client.devices[0])
client.close()
"""
    run = run_traced(code, tiny_library, tmp_path)
    assert "[0.0, 1024.0, 2048.0, 3072.0]" in run.output, run.output
    summary = summarize(run.trace)
    assert summary.buffers == 13
    assert (summary.peak_buffers, summary.peak_bytes) == (3, 16 + 2000)
    assert summary.bytes_between_devices == 1000
    assert summary.live_buffers == 0


def test_calls_that_block_are_counted(tiny_library: Path, tmp_path: Path) -> None:
    """The layer ``inject`` makes each copy long; looking at a client is not a call that need not wait."""
    code = "for _ in range(3): client.buffer_from_host(X)\nclient.close()\n"
    slow = "call=Client_BufferFromHostBuffer,slow=5ms,call=Client_Devices,slow=5ms"
    run = run_traced(code, tiny_library, tmp_path, inject=slow)
    assert run.returncode == 0, run.output
    rows = {row.name: (row.calls, row.blocked) for row in summarize(run.trace).blocking}
    assert rows["PJRT_Client_BufferFromHostBuffer"] == (3, 3)
    assert "PJRT_Client_Devices" not in rows
