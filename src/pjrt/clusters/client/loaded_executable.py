"""Executables on a cluster's devices: an execution is one call of each member that takes part."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pjrt import stablehlo
from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect, expect_sequence, wrong_number_of_rows
from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.future import Future
from pjrt.api.loaded_executable import ExecuteOptions, LoadedExecutable
from pjrt.api.program import Program
from pjrt.api.shape_spec import stands_for_token
from pjrt.clusters.client.buffer import ClusterBuffer
from pjrt.clusters.client.device import ClusterDevice
from pjrt.clusters.client.executable import ClusterExecutable
from pjrt.clusters.client.member import Member, check_all
from pjrt.clusters.client.member_future import MemberFuture

if TYPE_CHECKING:
    from pjrt.clusters.client.client import ClusterClient


@dataclass(slots=True)
class Part:
    """The part of an executable on the devices of one member.

    Attributes:
        member: the member.
        executable: the executable of the member's client.
        places: for each of the member's devices the number of its row of arguments.
        devices: the member's devices, in the order of its executable.
    """

    member: Member
    executable: LoadedExecutable
    places: list[int]
    devices: list[ClusterDevice]


class ClusterLoadedExecutable(ClusterExecutable, LoadedExecutable):
    """A program on devices of a cluster.

    Args:
        client: the client of the cluster.
        executables: the executable of each member that takes part.
        program: the program; ``None`` for a saved executable.
    """

    __slots__ = (
        "__dict__", "_is_deleted", "_parts", "_types", "_workers", "addressable_devices", "client",
        "device_assignment", "executable",
    )  # fmt: skip

    addressable_devices: Sequence[ClusterDevice]
    client: ClusterClient
    device_assignment: DeviceAssignment
    executable: ClusterExecutable

    def __init__(
        self, client: ClusterClient, executables: Sequence[tuple[Member, LoadedExecutable]], program: Program | None
    ) -> None:
        self._is_deleted = False
        first = executables[0][1]
        super().__init__(executables, program)
        self.executable = ClusterExecutable([(member, loaded.executable) for member, loaded in executables], program)
        self.client = client
        self.device_assignment = first.device_assignment
        self.addressable_devices = tuple(client.addressable(self.device_assignment))
        places = {device.id: place for place, device in enumerate(self.addressable_devices)}
        self._parts = []
        for member, executable in executables:
            numbers = [places[device.id] for device in executable.addressable_devices]
            devices = [self.addressable_devices[place] for place in numbers]
            self._parts.append(Part(member, executable, numbers, devices))
        self._workers = tuple(dict.fromkeys(device.worker for device in self.addressable_devices))
        self._types = _types(first)

    @property
    def platform_name(self) -> str:
        return self.client.platform_name

    @property
    def addressable_device_logical_ids(self) -> Sequence[tuple[int, int]]:
        return [self.device_assignment.logical_ids(device.id) for device in self.addressable_devices]

    # Running it.

    def execute(
        self,
        arguments: Sequence[Sequence[Buffer]],
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[list[Buffer]]:
        options = self._begin(options, returned_futures)
        rows: Any = expect_sequence(arguments, "one list of arguments a device")
        devices = self.addressable_devices
        if len(rows) != len(devices):
            raise wrong_number_of_rows(self.name, len(devices), len(rows))
        for row, device in zip(rows, devices, strict=True):
            self._check(row, device, options.non_donatable_input_indices)
        results: list[Any] = [None] * len(devices)
        futures: list[Any] | None = None if returned_futures is None else [None] * len(devices)
        # All hosts get the programs in one order. What could fail was checked: a host must not wait for another one
        # that never got the program.
        with self.client.order:
            check_all(self._workers)
            for part in self._parts:
                self._run(part, rows, options, results, futures)
        if returned_futures is not None:
            returned_futures += futures or ()
        return results

    def execute_sharded(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        options = self._begin(options, returned_futures)
        part = next((part for part in self._parts if device in part.devices), None)
        if part is None or not isinstance(device, ClusterDevice):
            raise InvalidArgumentError(
                f"{self.name!r} does not run on {device}; it runs on {', '.join(map(str, self.addressable_devices))}"
            )
        row: Any = arguments
        self._check(row, device, options.non_donatable_input_indices)
        futures: list[Future[None]] | None = None if returned_futures is None else []
        with self.client.order:
            device.worker.check()
            try:
                results = part.executable.execute_sharded(
                    [buffer.inner for buffer in row], device.inner, options, returned_futures=futures
                )
            except PjrtError as error:
                device.fail(error)
        if returned_futures is not None and futures is not None:
            returned_futures += [MemberFuture(future, device) for future in futures]
        return [ClusterBuffer(buffer, device) for buffer in results]

    def execute_portable(
        self,
        arguments: Sequence[Buffer],
        device: Device,
        options: ExecuteOptions | None = None,
        *,
        returned_futures: list[Future[None]] | None = None,
    ) -> list[Buffer]:
        raise InvalidArgumentError(
            f"{self.name!r} was compiled for its own devices; compile it with compile_portable_executable, or use "
            "execute_sharded"
        )

    def _run(
        self,
        part: Part,
        rows: Sequence[Sequence[ClusterBuffer]],
        options: ExecuteOptions,
        results: list[Any],
        futures: list[Any] | None,
    ) -> None:
        """Run the program on the devices of a member, and put its results where those of its devices belong."""
        if options.send_callbacks or options.recv_callbacks or options.hlo_output_callbacks:
            options = _options_of(part, options)
        ends: list[Future[None]] | None = None if futures is None else []
        try:
            outputs = part.executable.execute(
                [[buffer.inner for buffer in rows[place]] for place in part.places], options, returned_futures=ends
            )
        except PjrtError as error:
            part.member.fail(error)
        for place, device, row in zip(part.places, part.devices, outputs, strict=True):
            results[place] = [ClusterBuffer(buffer, device) for buffer in row]
        if futures is not None and ends is not None:
            for place, device, end in zip(part.places, part.devices, ends, strict=True):
                futures[place] = MemberFuture(end, device)

    def _begin(self, options: ExecuteOptions | None, returned_futures: list[Future[None]] | None) -> ExecuteOptions:
        if self._is_deleted:
            raise FailedPreconditionError(f"the executable {self.name!r} was deleted; compile it again")
        self.client.check()
        if returned_futures is not None:
            expect(returned_futures, list, "a list, or None, as returned_futures")
        return _DEFAULT if options is None else ExecuteOptions.of(options)

    def _check(self, row: Any, device: ClusterDevice, kept: frozenset[int]) -> None:
        """Raise an error unless buffers can be the arguments on a device; the ``kept`` ones are not donated."""
        expect_sequence(row, "the arguments as a list of buffers")
        types = self._types
        if types is not None and len(row) != len(types):
            raise InvalidArgumentError(f"{self.name!r} takes {len(types)} arguments, found {len(row)}")
        for number, buffer in enumerate(row):
            if type(buffer) is not ClusterBuffer:
                raise InvalidArgumentError(
                    f"argument {number} of {self.name!r} must be a buffer of this client, found "
                    f"{type(buffer).__name__}; make one with client.buffer_from_host"
                )
            if buffer.device is not device:
                raise self._misplaced(number, buffer, device)
            inner = buffer.inner
            if inner.is_deleted:
                raise FailedPreconditionError(f"{buffer!r} was deleted or donated; its value is gone")
            if types is not None:
                shape, element_type = types[number]
                if element_type is ElementType.TOKEN and stands_for_token(inner.element_type, inner.shape):
                    continue
                if inner.shape != shape or inner.element_type is not element_type:
                    raise InvalidArgumentError(
                        f"argument {number} of {self.name!r} must be {element_type.name.lower()}{list(shape)}, found "
                        f"{inner.element_type.name.lower()}{list(inner.shape)}"
                    )

        if len(set(map(id, row))) < len(row):
            self._check_donated_once(row, kept)

    def _check_donated_once(self, row: Sequence[ClusterBuffer], kept: frozenset[int]) -> None:
        for number in self._donated - kept:
            if sum(other is row[number] for other in row) > 1:
                raise InvalidArgumentError(
                    f"argument {number} of {self.name!r} is donated and must not be another argument as well; name it "
                    "in non_donatable_input_indices or pass a copy"
                )

    @functools.cached_property
    def _donated(self) -> frozenset[int]:
        """The numbers of the parameters that the program donates; none for a saved executable, which has no program."""
        if self.program is None:
            return frozenset()
        return frozenset(
            number
            for number, argument in enumerate(stablehlo.signature(self.program, trusted=True).arguments)
            if argument.aliases_output is not None or argument.is_donor
        )

    def _misplaced(self, number: int, buffer: ClusterBuffer, device: ClusterDevice) -> InvalidArgumentError:
        if buffer.client is not self.client:
            return InvalidArgumentError(
                f"argument {number} of {self.name!r} must be a buffer of this client, found one of another client"
            )
        return InvalidArgumentError(
            f"argument {number} of {self.name!r} is on {buffer.device}, the program runs on {device}; use "
            "buffer.copy_to(device)"
        )

    # Its end.

    @property
    def is_deleted(self) -> bool:
        return self._is_deleted

    def delete(self) -> None:
        self._is_deleted = True
        for part in self._parts:
            part.executable.delete()


def _options_of(part: Part, options: ExecuteOptions) -> ExecuteOptions:
    """Return the options for the devices of one member: callbacks are listed by device."""
    rows: dict[str, Any] = {
        name: [getattr(options, name)[place] for place in part.places]
        for name in ("send_callbacks", "recv_callbacks", "hlo_output_callbacks")
        if getattr(options, name)
    }
    return replace(options, **rows)


def _types(executable: LoadedExecutable) -> list[tuple[tuple[int, ...], ElementType]] | None:
    """Return the types of the parameters on one device; ``None`` if the member's client does not report them."""
    try:
        return [(spec.shape, spec.element_type) for spec in executable.parameter_specs]
    except UnimplementedError:
        return None


_DEFAULT = ExecuteOptions()
