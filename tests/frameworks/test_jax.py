"""JAX on devices of ours. Each device's checks run once, in one process, because JAX makes its backends once."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pjrt.layers import read_findings
from pjrt.system.processes import reserved_port

pytest.importorskip("jax")

SCRIPT = Path(__file__).with_name("jax_checks.py")
DEVICES = (
    "reference",
    *(pytest.param(device, marks=pytest.mark.full) for device in ("cpu", "simulated_chip", "here")),
    pytest.param("cluster", marks=pytest.mark.heavy),
    pytest.param("iree", marks=[pytest.mark.iree, pytest.mark.timeout(900)]),
)


def python(*arguments: str, timeout: float = 300, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **variables}
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
    )


@functools.cache
def results(device: str) -> tuple[dict[str, str | None], list[str]]:
    """Run all checks on the device with the layer validate before it: their results, and the layer's findings."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "findings.jsonl"
        done = python(str(SCRIPT), device, PJRT_LAYERS="validate", PJRT_VALIDATE=f"file={file},checksums=on")
        assert done.returncode == 0, done.stderr[-3000:]
        findings = [str(finding) for finding in read_findings(file)] if file.exists() else []
        return json.loads(done.stdout.splitlines()[-1]), findings


def checks() -> list[str]:
    lines = SCRIPT.read_text().splitlines()
    return [lines[i + 1].split("(")[0].removeprefix("def ") for i, line in enumerate(lines) if line == "@check"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", checks())
def test_jax_runs(device: str, name: str) -> None:
    assert results(device)[0][name] is None


@pytest.mark.parametrize("device", DEVICES)
def test_jax_and_an_exported_device_break_no_rule_of_the_c_api(device: str) -> None:
    assert results(device)[1] == []


REGISTER = "import pjrt, jax; platform = pjrt.frameworks.jax.register({device!r}, num_devices=2)\n"


def script(code: str, device: str = "cpu", timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return python("-c", REGISTER.format(device=device) + code, timeout=timeout)


def assert_clean(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    assert "Fatal" not in done.stderr


def test_importing_changes_no_default() -> None:
    done = python("-c", "import pjrt, jax; print(jax.default_backend(), len(jax.devices()))")
    assert done.stdout.split() == ["cpu", "1"]


@pytest.mark.full
def test_devices_are_shown_as_jax_shows_those_of_its_cpu() -> None:
    code = "for d in jax.devices('cpu')[0], jax.devices(platform)[0]: print(d, repr(d), [d])"
    theirs, ours = script(code).stdout.splitlines()
    assert ours == theirs == "cpu:0 CpuDevice(id=0) [CpuDevice(id=0)]"


@pytest.mark.full
def test_devices_from_the_environment() -> None:
    code = """
import os
import socket
from pjrt.frameworks import jax_plugin
os.environ[jax_plugin.VARIABLE] = "reference, cpu"
jax_plugin.initialize()
import jax
print(jax.default_backend(), jax.devices("reference")[0].platform, len(jax.devices("pjrt_cpu")))
"""
    done = python("-c", code)
    assert_clean(done)
    assert done.stdout.split() == ["cpu", "reference", "1"]


AS_CPU = """
import jax, jax.numpy as jnp, numpy as np
device, = jax.devices()[1:]
assert jax.devices("cpu") == jax.devices() and device.platform == jax.default_backend() == "cpu"
assert "numpy" in device.client.platform_version
print(np.asarray(jnp.linalg.svd(jax.device_put(jnp.eye(2) * 2, device), compute_uv=False)))
def computes(x):  # also with a callback of its own, which JAX's own CPU makes
    return jax.jit(lambda y: jax.pure_callback(np.negative, y, y))(x + 1)
print(jax.jit(lambda x: jax.pure_callback(computes, x, x))(jnp.ones(2)))
jax.jit(lambda x: jax.debug.callback(lambda y: print(y * 2), x))(1.0)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "variables"),
    [
        ("", {"PJRT_JAX_AS_CPU": "reference", "JAX_NUM_CPU_DEVICES": "2"}),
        ("", {"PJRT_JAX_AS_CPU": "reference", "JAX_PLATFORMS": "cpu", "PJRT_OPTIONS_REFERENCE": "num_devices=2"}),
        ("import pjrt; pjrt.frameworks.jax.register('reference', platform='cpu', num_devices=2)", {}),
        ("import pjrt; pjrt.frameworks.jax.register(pjrt.client('reference', num_devices=2), platform='cpu')", {}),
    ],
)
def test_a_device_in_the_place_of_jaxs_cpu(before: str, variables: dict[str, str]) -> None:
    done = python("-c", f"{before}\n{AS_CPU}", **variables)
    assert_clean(done)
    assert done.stdout.splitlines() == ["[2. 2.]", "[-2. -2.]", "2.0"]


@pytest.mark.full
def test_a_device_that_cannot_take_the_place_of_jaxs_cpu_leaves_none() -> None:
    done = python("-c", "import jax; jax.devices()", PJRT_JAX_AS_CPU="nowhere")
    assert "backend 'cpu': PJRT_JAX_AS_CPU=nowhere: there is no device called 'nowhere'" in done.stderr
    again = "pjrt.frameworks.jax.register('reference', platform='cpu')\n" * 2 + "print('the same')\n"
    other = "pjrt.frameworks.jax.register('cpu', platform='cpu')"
    done = python("-c", f"import pjrt\n{again}{other}")
    assert done.stdout.split() == ["the", "same"]
    assert "JAX has a platform 'cpu' already" in done.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "variables", "count"),
    [
        ("", {"JAX_NUM_CPU_DEVICES": "3"}, 3),
        ("", {"XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_force_host_platform_device_count=4"}, 4),
        ("", {"JAX_NUM_CPU_DEVICES": "3", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}, 3),
        (", num_devices=2", {"JAX_NUM_CPU_DEVICES": "3"}, 2),
        ("", {"JAX_NUM_CPU_DEVICES": "3", "PJRT_OPTIONS_CPU": "num_devices=2"}, 2),
    ],
)
def test_the_exported_cpu_has_as_many_devices_as_jaxs(options: str, variables: dict[str, str], count: int) -> None:
    code = f"import pjrt, jax; print(len(jax.devices(pjrt.frameworks.jax.register('cpu'{options}))))"
    done = python("-c", code, **variables)
    assert_clean(done)
    assert int(done.stdout) == count


@pytest.mark.full
def test_a_device_that_has_fewer_than_jax_asks_for_says_so() -> None:
    code = "import pjrt, jax; pjrt.plugins.register(name='single', factory=lambda: pjrt.client('reference')); "
    code += "pjrt.frameworks.jax.register('single', platform='cpu'); print(len(jax.devices()))"
    done = python("-c", code, JAX_NUM_CPU_DEVICES="2")
    assert_clean(done)
    assert done.stdout.split() == ["1"]
    assert "asks for 2 CPU devices; the device 'single' has 1 and cannot make more" in done.stderr


@pytest.mark.full
def test_exit_with_live_arrays() -> None:
    assert_clean(script("x = [jax.device_put(i * 1.0, jax.devices(platform)[i % 2]) for i in range(10)]"))


@pytest.mark.full
def test_exit_with_work_in_flight() -> None:
    code = """
import jax.numpy as jnp
f = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda i, v: v @ v / 100, x))
with jax.default_device(jax.devices(platform)[0]):
    y = [f(jnp.ones((100, 100))) for _ in range(20)]
"""
    assert_clean(script(code))


@pytest.mark.full
def test_exit_with_ordered_effects_in_flight() -> None:
    code = """
from jax.experimental import io_callback
import numpy as np
def effect(x):
    return np.float32(x)
def loop(n):
    shape = jax.ShapeDtypeStruct((), np.float32)
    return jax.lax.fori_loop(0, n, lambda i, s: s + io_callback(effect, shape, i * 1.0, ordered=True), 0.0)
with jax.default_device(jax.devices(platform)[0]):
    y = jax.jit(loop)(50)
"""
    done = script(code)
    assert_clean(done)
    assert "Traceback" not in done.stderr


@pytest.mark.full
@pytest.mark.parametrize("kind", ["pure", "ordered", "debug"])
def test_the_error_of_a_callback_is_shown_once_at_exit(kind: str) -> None:
    """It may have been caught, which nobody can tell then. The device goes on to work."""
    code = f"""
import atexit, sys
from jax.experimental import io_callback
import numpy as np
def fail(*operands):
    raise RuntimeError("boom")
def call(x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    if {kind!r} == "pure":
        return jax.pure_callback(fail, shape, x)
    if {kind!r} == "ordered":
        return io_callback(fail, shape, x, ordered=True)
    jax.debug.callback(fail, x)
    return x
with jax.default_device(jax.devices(platform)[0]):
    try:
        jax.block_until_ready(jax.jit(call)(np.ones(3, np.float32)))
    except Exception as error:
        print(type(error).__name__)
    print(float(jax.jit(lambda x: x.sum())(np.ones(3, np.float32))))
atexit.register(print, "EXIT", file=sys.stderr)
"""
    done = script(code, "reference")
    assert_clean(done)
    assert done.stdout.split() == ["JaxRuntimeError", "3.0"]
    assert done.stderr.partition("EXIT")[2].count("JaxRuntimeError: ") == 1


@pytest.mark.full
def test_clear_backends() -> None:
    code = """
import jax.extend, gc
x = jax.device_put(1.0, jax.devices(platform)[0]) + 1
del x
jax.clear_caches()
jax.extend.backend.clear_backends()
gc.collect()
print(jax.device_put(2.0, jax.devices(platform)[0]) + 1)
"""
    done = script(code)
    assert_clean(done)
    assert done.stdout.strip() == "3.0"


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_lowering_rules_that_a_library_adds_when_the_device_is_in_use(device: str) -> None:
    code = """
jax.config.update("jax_platforms", platform)
import jax.numpy as jnp
jnp.ones(3) + 1
from jax.extend.core import Primitive
from jax.interpreters import mlir

primitive = Primitive("reversed")
primitive.def_abstract_eval(lambda x: x)
def lower(ctx, x):
    results, _, _ = mlir.emit_python_callback(
        ctx, lambda x: (x[::-1],), None, [x], ctx.avals_in, ctx.avals_out, has_side_effect=False, returns_token=False)
    return results
mlir.register_lowering(primitive, lower, platform="cpu")
print(jax.jit(primitive.bind)(jnp.arange(3)))
"""
    done = script(code, device)
    assert_clean(done)
    assert done.stdout.strip() == "[2 1 0]"


@pytest.mark.full
def test_the_only_cpu_device_is_jaxs_cpu_however_it_is_chosen() -> None:
    done = script("jax.config.update('jax_platforms', platform); print(jax.devices('cpu') == jax.devices())")
    assert_clean(done)
    assert done.stdout.strip() == "True"


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_client_that_stays_open_when_jax_ends(device: str) -> None:
    code = f"""
import gc, pjrt, jax, jax.extend
import numpy as np
client = pjrt.client({device!r}, num_devices=2)
platform = pjrt.frameworks.jax.register(client, make_default=True)
print(platform, len(jax.devices()), jax.default_backend())
for _ in range(2):
    x = jax.device_put(1.0, jax.devices(platform)[1])
    print(float(x + 1))
    del x
    jax.clear_caches()
    jax.extend.backend.clear_backends()
    gc.collect()
    print(client.is_closed, float(np.asarray(client.buffer_from_host(np.float32(3)))))
"""
    done = python("-c", code)
    assert_clean(done)
    name, default = ("pjrt_cpu", "cpu") if device == "cpu" else ("reference", "reference")
    assert done.stdout.splitlines() == [f"{name} 2 {default}", *(["2.0", "False 3.0"] * 2)]


@pytest.mark.full
def test_two_devices_at_once() -> None:
    code = """
other = pjrt.frameworks.jax.register("reference")
a = jax.device_put(1.0, jax.devices(platform)[0])
b = jax.device_put(2.0, jax.devices(other)[0])
print(float(a + 1), float(b + 1), float(jax.device_put(a, jax.devices(other)[0]) + b))
"""
    done = script(code)
    assert_clean(done)
    assert done.stdout.split() == ["2.0", "3.0", "3.0"]


@pytest.mark.full
def test_callers_on_many_threads() -> None:
    code = """
import concurrent.futures, jax.numpy as jnp
f = jax.jit(lambda x: (x * 2).sum())
def work(i):
    with jax.default_device(jax.devices(platform)[i % 2]):
        return float(f(jnp.full(100, i, jnp.float32)))
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    assert list(pool.map(work, range(64))) == [200.0 * i for i in range(64)]
print("done")
"""
    done = script(code)
    assert_clean(done)
    assert done.stdout.strip() == "done"


@pytest.mark.full
def test_registering_too_late_says_so() -> None:
    code = """
jax.devices()
try:
    pjrt.frameworks.jax.register("reference")
except pjrt.PjrtError as error:
    print(error.code.name, error.message)
"""
    done = script(code)
    assert done.stdout.startswith("FAILED_PRECONDITION JAX has made its backends already")


@pytest.mark.full
@pytest.mark.parametrize(
    ("raised", "told"),
    [
        ("LookupError('the device lost its way')", "LookupError: the device lost its way"),
        ("pjrt.ResourceExhaustedError('no room for it')", "RESOURCE_EXHAUSTED: no room for it"),
        ("MemoryError('none left')", "RESOURCE_EXHAUSTED: MemoryError: none left"),
    ],
)
def test_an_exception_in_a_device_is_a_jax_error(raised: str, told: str) -> None:
    code = f"""
import pjrt, jax

def compile(program, options):
    def run(*arrays):
        raise {raised}
    return run

exported = pjrt.export(lambda **o: pjrt.StableHloClient("lost", compile=compile, **o), name="lost")
platform = pjrt.frameworks.jax.register(exported)
try:
    x = jax.device_put(1.0, jax.devices(platform)[0])
    (x + 1).block_until_ready()
except Exception as error:
    print(type(error).__name__, error)
"""
    done = python("-c", code)
    assert_clean(done)
    assert "JaxRuntimeError" in done.stdout
    assert told in done.stdout


@pytest.mark.full
def test_an_error_of_a_kernel_on_device_memory_names_the_author_and_the_user(tmp_path: Path) -> None:
    (tmp_path / "author.py").write_text(f"""
import sys
sys.path.append({str(SCRIPT.parent)!r})
from simulated_chip import SimulatedChip

def sine(operation, address):
    raise LookupError("the sine unit is broken")

def make_client(**options):
    return SimulatedChip(more_kernels={{"stablehlo.sine": sine}}, **options)
""")
    (tmp_path / "user.py").write_text("""
import author, jax, pjrt
platform = pjrt.frameworks.jax.register(pjrt.export(author.make_client, name="broken"))
x = jax.device_put(1.0, jax.devices(platform)[0])

def model(x):
    return jax.numpy.sin(x) * 2

try:
    jax.jit(model)(x).block_until_ready()
except jax.errors.JaxRuntimeError as error:
    print(error)
print(float(jax.jit(lambda x: x * 2)(x)))
""")
    done = python(str(tmp_path / "user.py"))
    assert_clean(done)
    message, after = done.stdout.splitlines()
    assert "LookupError: the sine unit is broken (author.py:7 in sine)" in message
    assert "(in stablehlo.sine (tensor<f32>) -> (tensor<f32>) [jit(model)/sin at model at " in message
    assert "user.py:7:11, called from <module> at " in message
    assert after == "2.0"  # the device goes on


@pytest.mark.full
def test_memory_stays_flat_over_many_calls() -> None:
    code = """
import resource, jax.numpy as jnp, gc
def rss():
    return int(open('/proc/self/statm').read().split()[1]) * resource.getpagesize()
f = jax.jit(lambda x: x + 1)
x = jax.device_put(1.0, jax.devices(platform)[0])
taken = []
for turn in range(6):
    for _ in range(20_000 if turn else 2000): x = f(x)
    x.block_until_ready(); gc.collect()
    taken.append(rss())
# A leak adds to each turn; what an allocator, a thread or work that waits takes at times does not.
print(min(after - before for before, after in zip(taken, taken[1:])))
"""
    done = script(code, timeout=280)
    assert_clean(done)
    assert int(done.stdout.strip()) < 1 << 20


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plugin's library as a vendor would bring one."""
    folder = tmp_path_factory.mktemp("vendor")
    (folder / "vendors_device.py").write_text(
        "import pjrt\n\ndef make(num_devices=1):\n    return pjrt.client('reference', num_devices=num_devices)\n"
    )
    done = python("-m", "pjrt", "export", f"{folder / 'vendors_device.py'}:make", "-o", str(folder / "libvendors.so"))
    assert done.returncode == 0, done.stderr
    return folder / "libvendors.so"


@pytest.mark.full
@pytest.mark.parametrize("wrap", [False, True])
def test_a_library_is_opened_by_jax_itself_or_comes_through_this_package(library: Path, wrap: bool) -> None:
    code = f"""
import pjrt, jax, jax.numpy as jnp, numpy as np
platform = pjrt.frameworks.jax.register({str(library)!r}, wrap={wrap}, num_devices=2)
print(platform, jax.default_backend(), len(jax.devices(platform)), jax.devices(platform)[0].platform)
x = jax.device_put(np.arange(4, dtype=np.float32), jax.devices(platform)[1])
print(jax.jit(lambda v: jnp.tanh(v).sum())(x).devices() == {{jax.devices(platform)[1]}})
"""
    done = python("-c", code)
    assert_clean(done)
    platform = "vendors" if wrap else "reference"
    assert done.stdout.splitlines() == [f"vendors cpu 2 {platform}", "True"]


@pytest.mark.full
def test_processes_of_a_machine_have_devices_of_their_own() -> None:
    code = """
import sys, pjrt, jax
pjrt.plugins.register(name="board", factory=lambda **o: pjrt.StableHloClient("board", fallback="reference", **o),
    options={"num_devices": 4},
    processes=pjrt.plugins.ProcessOptions(count="num_devices", index="process_index", total="process_count"))
pjrt.plugins.assign_devices("board", int(sys.argv[1]), 2)
platform = pjrt.frameworks.jax.register("board")
print([d.id for d in jax.local_devices(backend=platform)], [d.process_index for d in jax.devices(platform)])
try:
    pjrt.plugins.assign_devices("board", 0, 4)
except pjrt.FailedPreconditionError as error:
    print(error.message)
"""
    for rank, mine in enumerate(("[0, 1]", "[2, 3]")):
        done = python("-c", code, str(rank))
        assert_clean(done)
        first, second = done.stdout.splitlines()
        assert first == f"{mine} [0, 0, 1, 1]"
        assert "made a client in this process already" in second


@pytest.mark.full
def test_what_a_program_registers_itself_is_not_registered_again(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        '[plugins.sound]\nfactory = "pjrt.devices.reference.plugin:ReferencePlugin"\nframeworks.jax = {}\n'
    )
    code = f"""
import os
os.environ["PJRT_CONFIG"] = {str(tmp_path / "config.toml")!r}
import pjrt
from pjrt.frameworks import jax_plugin
platform = pjrt.frameworks.jax.register("sound", num_devices=3)
jax_plugin.initialize()
import jax
print(len(jax.devices(platform)))
"""
    done = python("-c", code)
    assert_clean(done)
    assert done.stdout.split() == ["3"]
    assert "is unavailable to JAX" not in done.stderr


@pytest.mark.full
def test_a_plugin_that_is_meant_for_jax_is_there_and_a_broken_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        "[plugins.sound]\n"
        'factory = "pjrt.devices.reference.plugin:ReferencePlugin"\n'
        'frameworks.jax.platform = "soundness"\n'
        "[plugins.cracked]\n"
        'factory = "nowhere:make"\n'
        "frameworks.jax = {}\n"
        "[plugins.misspelled]\n"
        'factory = "nowhere:make"\n'
        "frameworks.jax.platfrom = 1\n"
    )
    code = f"""
import os
import socket
os.environ["PJRT_CONFIG"] = {str(tmp_path / "config.toml")!r}
from pjrt.frameworks import jax_plugin
jax_plugin.initialize()
import jax
print(jax.default_backend(), jax.devices("soundness"))
"""
    done = python("-c", code)
    assert_clean(done)
    assert done.stdout.strip().startswith("cpu [")
    assert (
        "'misspelled' is unavailable to JAX: the plugin 'misspelled': unknown key frameworks.jax.platfrom"
        in done.stderr
    )


EXPORTS = {
    "of a device": "pjrt.export(lambda **o: pjrt.client('reference', **o), name='mine')",
    "of a client with another name": "pjrt.export(lambda: pjrt.client('reference'), name='mine', platform_name='b')",
    "of the cpu": "pjrt.export(lambda **o: pjrt.client('cpu', **o), name='mine')",
}

CALLBACKS = """
import numpy as np
x = jax.device_put(np.arange(3, dtype=np.float32), jax.devices(platform)[0])
y = jax.jit(lambda v: (jax.debug.print("seen {}", v), jax.pure_callback(np.square, v, v))[1])(x)
jax.effects_barrier()
print(np.asarray(y))
"""


@pytest.mark.full
@pytest.mark.parametrize("exported", EXPORTS.values(), ids=EXPORTS)
def test_an_exported_device_calls_back_into_python(exported: str) -> None:
    done = python("-c", f"import pjrt, jax\nplatform = pjrt.frameworks.jax.register({exported})\n{CALLBACKS}")
    assert_clean(done)
    assert done.stdout.splitlines() == ["seen [0. 1. 2.]", "[0. 1. 4.]"]


@pytest.mark.full
@pytest.mark.parametrize("wrap", [False, True])
def test_a_library_that_this_package_wrote_calls_back_into_python(library: Path, wrap: bool) -> None:
    register = f"import pjrt, jax\nplatform = pjrt.frameworks.jax.register({str(library)!r}, wrap={wrap})\n"
    done = python("-c", register + CALLBACKS)
    assert_clean(done)
    assert done.stdout.splitlines() == ["seen [0. 1. 2.]", "[0. 1. 4.]"]


@pytest.mark.full
def test_the_processes_of_jax_distributed_know_each_other() -> None:
    """JAX gives each process's client its index; a device gets it under the option names that it declares."""
    said = of_two_processes("""
import sys, pjrt, jax, numpy as np
pjrt.plugins.register(name="board", factory=lambda **o: pjrt.client("reference", **o),
    processes=pjrt.plugins.ProcessOptions(count="num_devices", index="process_index", total="process_count"))
platform = pjrt.frameworks.jax.register("board")
jax.distributed.initialize(sys.argv[2], num_processes=2, process_id=int(sys.argv[1]))
mine = jax.local_devices(backend=platform)
print([d.process_index for d in jax.devices(platform)], [d.id for d in mine])
print(float(jax.jit(lambda v: v * 2)(jax.device_put(np.float32(3), mine[0]))))
""")
    assert said == [["[0, 1] [0]", "6.0"], ["[0, 1] [1]", "6.0"]]


@pytest.mark.full
def test_jax_distributed_at_the_address_of_our_job_is_refused() -> None:
    """jaxlib ends the process (SIGSEGV) where the port of its service is in use."""
    with reserved_port() as port:
        address = f"127.0.0.1:{port}"
        done = python(
            "-c",
            f"""
import pjrt, jax
pjrt.distributed.initialize({address!r}, 1, 0)
try:
    jax.distributed.initialize({address!r}, 1, 0)
except pjrt.UnavailableError as error:
    print(error.message)
""",
        )
    assert_clean(done)
    assert "give each of the two an address of its own" in done.stdout


REGISTRATIONS = {
    "an export that takes any options": "pjrt.export(lambda **o: pjrt.client('reference', **o), name='mine')",
    "an export that takes none": "pjrt.export(lambda: pjrt.client('reference'), name='mine')",
    "a device that knows no processes": "'cpu'",
}


@pytest.mark.full
@pytest.mark.parametrize("registered", REGISTRATIONS.values(), ids=REGISTRATIONS)
def test_a_device_that_knows_nothing_of_jax_distributed_works_beside_it(registered: str) -> None:
    said = of_two_processes(f"""
import sys, pjrt, jax, numpy as np
platform = pjrt.frameworks.jax.register({registered})
jax.distributed.initialize(sys.argv[2], num_processes=2, process_id=int(sys.argv[1]))
device = jax.local_devices(backend=platform)[0]
print(float(jax.jit(lambda v: v * 2)(jax.device_put(np.float32(3), device))))
""")
    assert said == [["6.0"], ["6.0"]]


@pytest.mark.full
def test_an_exported_factory_that_asks_is_told_its_place_in_jax_distributed() -> None:
    said = of_two_processes("""
import sys, pjrt, jax
def make(node_id, num_nodes, key_value_store):
    print(node_id, num_nodes, key_value_store is not None)
    return pjrt.client("reference")
platform = pjrt.frameworks.jax.register(pjrt.export(make, name="mine"))
jax.distributed.initialize(sys.argv[2], num_processes=2, process_id=int(sys.argv[1]))
jax.devices(platform)
""")
    assert said == [["0 2 True"], ["1 2 True"]]


def of_two_processes(code: str) -> list[list[str]]:
    """Return what each of two processes of one job prints; they are given their number and the job's address."""
    command = [sys.executable, "-X", "faulthandler", "-c", code]
    with reserved_port() as port:
        started = [
            subprocess.Popen(
                [*command, str(rank), f"localhost:{port}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for rank in range(2)
        ]
        answers = [process.communicate(timeout=200) for process in started]
    for process, (_, complained) in zip(started, answers, strict=True):
        assert process.returncode == 0, complained[-3000:]
        assert "WatchTasksAsync" not in complained  # a warning of jaxlib's about the end of the job
    return [said.splitlines() for said, _ in answers]


@pytest.mark.full
def test_a_device_that_does_not_say_how_results_are_split_is_named() -> None:
    code = """
import numpy as np, pjrt, jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from pjrt.host import Compiled, HostClient

def compile(program, options):
    spec = pjrt.ShapeSpec((2,), np.float32)
    return Compiled(run=lambda x: x * 2, outputs=[spec], parameters=[spec])

exported = pjrt.export(lambda **o: HostClient("silent", compile=compile, num_devices=4, **o), name="silent")
platform = pjrt.frameworks.jax.register(exported)
split = NamedSharding(Mesh(np.array(jax.devices(platform)), ("x",)), P("x"))
x = jax.device_put(np.arange(8, dtype=np.float32), split)
print(np.asarray(jax.jit(lambda v: v * 2, out_shardings=split)(x)))
try:
    jax.jit(lambda v: v * 2)(x)
except pjrt.UnimplementedError as error:
    print(error.message)
"""
    done = python("-c", code)
    assert_clean(done)
    numbers, refused = done.stdout.splitlines()
    assert numbers == "[ 0.  2.  4.  6.  8. 10. 12. 14.]"
    assert refused.startswith("the device 'silent' does not declare how result 0 of a program of several partitions")


@pytest.mark.full
def test_a_device_that_cannot_be_had_leaves_the_others(tmp_path: Path) -> None:
    """JAX ends over a library without a table. Over one whose functions fail it reports the reason, and goes on."""
    device, library = tmp_path / "device.py", tmp_path / "libdevice.so"
    device.write_text("import pjrt\ndef make(): return pjrt.client('reference')\n")
    exported = python("-m", "pjrt", "export", f"{device}:make", "-o", str(library), "--name", "mychip")
    assert exported.returncode == 0, exported.stderr
    device.write_text("raise RuntimeError('the chip is not there')\n")
    script = """
import jax
for _ in range(2):
    try:
        jax.devices("mychip")
    except RuntimeError as error:
        print(error)
    print(jax.jit(lambda x: x + 1)(jax.device_put(1, jax.devices("cpu")[0])))
"""
    done = python("-c", script, PJRT_NAMES_AND_LIBRARY_PATHS=f"mychip:{library}", JAX_PLATFORMS="cpu,mychip")
    assert done.returncode == 0, done.stderr
    refused, two, *_ = done.stdout.splitlines()
    assert "the chip is not there" in refused
    assert two == "2"


@pytest.mark.full
@pytest.mark.parametrize("given", ["client", "pjrt.export(client, name='reference')"])
def test_a_client_that_was_closed_leaves_the_other_devices(given: str) -> None:
    """Before JAX makes its backends, while it has them, and before it makes them again."""
    code = f"""
import jax, jax.extend, pjrt
client = pjrt.client("reference")
platform = pjrt.frameworks.jax.register({given}, make_default=True)
def show():
    print(jax.default_backend(), float(jax.jit(lambda x: x + 1)(jax.device_put(1.0, jax.devices("cpu")[0]))))
    try:
        print(jax.jit(lambda x: x + 1)(jax.device_put(1.0, jax.devices(platform)[0])))
    except RuntimeError as error:
        print(error)
if EARLY:
    client.close()
show()
client.close()
show()
jax.clear_caches()
jax.extend.backend.clear_backends()
show()
"""
    late = python("-c", code.replace("EARLY", "False"), JAX_PLATFORMS="")
    assert_clean(late)
    closed = "FAILED_PRECONDITION: the client 'reference' was closed; make a new one"
    gone = (
        "Backend 'reference' failed to initialize: FAILED_PRECONDITION: <ReferenceClient reference, closed> was closed"
    )
    assert late.stdout.splitlines()[:5] == ["reference 2.0", "2.0", "reference 2.0", closed, "cpu 2.0"]
    assert late.stdout.splitlines()[5].startswith(gone)
    early = python("-c", code.replace("EARLY", "True"), JAX_PLATFORMS="")
    assert_clean(early)
    assert [line for line in early.stdout.splitlines() if not line.startswith(gone)] == ["cpu 2.0"] * 3
    assert "the device 'reference' is unavailable to JAX: its client was closed" in early.stderr


@pytest.mark.full
def test_a_device_is_registered_again() -> None:
    """The same call does nothing, as where a cell of a notebook runs again. For another the error says what to do."""
    done = python(
        "-c",
        """
import jax.extend, pjrt
from pjrt.frameworks.jax import register
print(register("reference", num_devices=2), register("reference", num_devices=2))
for _ in range(2):
    try:
        register("reference", num_devices=3)
    except pjrt.FailedPreconditionError as error:
        print(error.message)
    print(len(jax.devices("reference")), register("reference", num_devices=2))
jax.extend.backend.clear_backends()
print(register("reference", num_devices=3, platform="reference_2"))
print(len(jax.devices("reference_2")), len(jax.devices("reference")))
""",
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0] == "reference reference"
    assert "for other options give another name, such as platform='reference_2'" in said[1]
    assert "call jax.extend.backend.clear_backends(), and give another name" in said[3]
    assert [said[2], *said[4:]] == ["2 reference", "2 reference", "reference_2", "3 2"]


@pytest.mark.full
def test_a_name_that_jax_registers_itself() -> None:
    script = "import pjrt; pjrt.frameworks.jax.register('reference', platform='mine')"
    done = python("-c", script, PJRT_NAMES_AND_LIBRARY_PATHS="other:/a.so,mine:/b.so")
    assert "JAX registers 'mine' itself, because PJRT_NAMES_AND_LIBRARY_PATHS names it" in done.stderr
