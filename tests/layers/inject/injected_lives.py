"""A program: an error is injected into each function of the ABI, one after the other, while a whole life with the tiny
plugin runs through our own loader, with the layer ``validate`` above. It prints what it saw as JSON."""

from __future__ import annotations

import faulthandler
import gc
import json
import sys
from collections.abc import Callable

from tiny.control import Control
from tiny.life import SPEC, Life, X
from tiny.program import TinyProgram

import pjrt
from pjrt.abi.schema import FUNCTIONS
from pjrt.api.client import Client
from pjrt.capi import LoadedPlugin
from pjrt.layers import findings, inject, injections, wrap

faulthandler.dump_traceback_later(270, exit=True)


def program() -> pjrt.Program:
    """Return a program for the tiny plugin."""
    double = TinyProgram("double")
    x = double.parameter("f32[4]")
    return pjrt.Program(double.result(double.let("add", x, x)).code, format="tiny")


def raw_buffers(client: Client) -> None:
    """Use a raw buffer, and what is described of memories."""
    buffer = client.buffer_from_host(X)
    raw = buffer.raw()
    assert (raw.on_device_size, raw.memory_space) == (16, buffer.memory_space)
    assert raw.host_pointer()
    raw.copy_from_host(X.tobytes(), 0).result(60)
    raw.release()
    assert client.devices[0].description.memory_space_descriptions[0].kind == "device"


def programs(client: Client, plugin: LoadedPlugin) -> None:
    """Use what extensions know of programs and their versions."""
    executable = client.compile(program()).executable
    assert executable.parameter_layouts
    assert executable.parameter_shardings in (None, (b"",))
    runtime, version = client.runtime_abi_version(), executable.abi_version()
    assert runtime.platform_id == version.platform_id
    plugin.runtime_abi_version(runtime.to_proto()).check_compatible_with(runtime)
    runtime.check_compatible_with(plugin.executable_abi_version(version.to_proto()))


def topologies(plugin: LoadedPlugin) -> None:
    """Use the phases of a topology's compiler, and what a topology of TPUs knows."""
    topology = plugin.topology("4x2", num_processes=2)
    assert topology.phase_compiler().run(program(), ["parse", "optimize"])
    tpu = topology.tpu
    assert (tpu.chip_count, tpu.core_count, tpu.device_count, tpu.process_count) == (8, 8, 8, 2)
    assert (tpu.cores_per_chip, tpu.devices_per_chip, tpu.chips_per_process, tpu.devices_per_process) == (1, 1, 4, 4)
    assert (tpu.chip_bounds, tpu.process_bounds, tpu.chips_per_process_bounds) == ((4, 2, 1), (2, 1, 1), (2, 2, 1))
    assert tpu.cores_per_process == 4
    assert (tpu.is_subslice, tpu.is_enhanced_barrier_enabled, tpu.has_limited_ici_connectivity) == (False, True, True)
    assert (tpu.routing_strategy, tpu.process_ids, tpu.process_coords(1)) == ("grid", (0, 1), (1, 0, 0))
    place, index = tpu.place_of_device(1)
    assert tpu.device_at(place, index) == tpu.chip_at(place) == 1
    assert tpu.process_of_device(1) == tpu.process_of_chip(1) == (0, 1)
    assert tpu.devices_of_process(0)[1] == 1
    assert tpu.is_reachable_over_limited_ici(0, 1)
    assert tpu.subslice((1, 2, 1), (2, 1, 1)).tpu.is_subslice


def transfers(client: Client) -> None:
    """Send an array to another device by its key."""
    buffers = client.cross_host_receive_buffers([SPEC], client.devices[1], [0], [70])
    for future in client.cross_host_send_buffers([client.buffer_from_host(X)], [1], [70]):
        future.result(60)
    assert buffers[0].to_host().result(60)[1] == 1


def user_data(client: Client) -> None:
    """Give user data to FFI handlers."""
    number = client.register_ffi_type("life.thing")
    with client.create_execute_context() as context:
        context.add_user_data(number, 0x1000)


def further_life(plugin: LoadedPlugin) -> list[str]:
    """Call functions of extensions that the other life leaves out; return the errors."""
    errors = []
    client = None
    try:
        client = plugin.client(num_devices=2)
        for step in (
            lambda: raw_buffers(client),
            lambda: programs(client, plugin),
            lambda: topologies(plugin),
            lambda: transfers(client),
            lambda: user_data(client),
        ):
            try:
                step()
            except pjrt.PjrtError as error:
                errors.append(str(error))
        client.close()
    except pjrt.PjrtError as error:
        errors.append(str(error))
    return errors


def life(plugin: LoadedPlugin) -> list[str]:
    """Call all functions of the table, and some of extensions; return the errors."""
    return [str(error) for error in Life(plugin).run()]


class Lives:
    """Lives with one plugin, whose layer ``inject`` gets other rules for each."""

    def __init__(self, library: str) -> None:
        self.control = Control(library)
        self.plugin = wrap(library, ["validate", "inject"], validate="limit=1000")
        self.unraisable: list[str] = []
        sys.unraisablehook = lambda entry: self.unraisable.append(str(entry.exc_value))

    def live(self, which: Callable[[LoadedPlugin], list[str]], rules: str) -> list[str]:
        """Live once under these rules, and return the messages of all errors."""
        self.unraisable.clear()
        inject(self.plugin, rules)
        errors = which(self.plugin)
        inject(self.plugin, "")
        gc.collect()
        return errors + self.unraisable

    def called(self, which: Callable[[LoadedPlugin], list[str]]) -> list[str]:
        """Return the functions that a healthy life calls and that can fail."""
        names = [name for name, function in FUNCTIONS.items() if function.result == "ERROR"]
        called = []
        for start in range(0, len(names), 30):
            rules = [{"call": name, "slow": "0ns"} for name in names[start : start + 30]]
            inject(self.plugin, rules)
            if errors := which(self.plugin):
                raise AssertionError(f"a healthy life failed: {errors}")
            called += [each["call"] for each, rule in zip(rules, injections(self.plugin), strict=True) if rule.calls]
        return called

    def fail(self, which: Callable[[LoadedPlugin], list[str]], function: str, code: str) -> dict[str, object]:
        """Live with an error in the first call of a function, and return what came of it."""
        before = self.control.live()
        message = f"no {function} today"
        number = len(findings(self.plugin))
        messages = self.live(which, f"call={function},nth=1,error={code},message={message}")
        return {
            "reported": any(message in each for each in messages),
            "messages": messages,
            "left": self.control.left_over(before),
            "findings": [str(finding) for finding in findings(self.plugin)[number:]],
        }


if __name__ == "__main__":
    lives = Lives(sys.argv[1])
    ways = dict.fromkeys(lives.called(further_life), further_life) | dict.fromkeys(lives.called(life), life)
    codes = [code.name for code in pjrt.StatusCode if code.name not in ("OK", "UNIMPLEMENTED")]
    results = {
        name: lives.fail(which, name, codes[place % len(codes)])
        for place, (name, which) in enumerate(ways.items())
        if name not in sys.argv[2:]
    }
    print(json.dumps({"results": results, "last": lives.live(life, "")}))
