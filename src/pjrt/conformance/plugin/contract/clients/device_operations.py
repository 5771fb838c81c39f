"""Checks of what can be asked of a device: tracking events, poisoned executions, cleared statistics."""

from __future__ import annotations

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.subject import Subject

_TRACKING = "PJRT_Device_CreateAsyncTrackingEvent"
_TRACKING_DESTROY = "PJRT_AsyncTrackingEvent_Destroy"
_POISON = "PJRT_Device_PoisonExecution"
_CLEAR = "PJRT_Device_ClearMemoryStats"
_STATS = "PJRT_Device_MemoryStats"
_TEXTS = {"short": "step", "empty": "", "long": "x" * 10000, "of any language": "Schritt für Schritt ▸ 步骤"}


@check(
    "device.create_async_tracking_event.description",
    calls=(_TRACKING, _TRACKING_DESTROY),
    rule="A tracking event takes a description, of which the memory is the plugin's only during the call, and is "
    "destroyed. A device that tracks nothing returns a null pointer.",
    over=_TEXTS,
)
def _tracking_event(subject: Subject, text: str) -> None:
    subject.require(_TRACKING, _TRACKING_DESTROY)
    event = subject.call(_TRACKING, device=subject.device, description=text).event
    if event:
        subject.call(_TRACKING_DESTROY, event=event)


@check(
    "device.create_async_tracking_event.several",
    calls=(_TRACKING, _TRACKING_DESTROY),
    rule="Several tracking events of a device live side by side, and are destroyed in any order.",
)
def _several_events(subject: Subject) -> None:
    subject.require(_TRACKING, _TRACKING_DESTROY)
    events = [subject.call(_TRACKING, device=subject.device, description=f"event {i}").event for i in range(8)]
    real = [each for each in events if each]
    subject.expect(len(set(real)) == len(real), "different events", "the same event twice")
    for each in [*real[::2], *real[1::2]]:
        subject.call(_TRACKING_DESTROY, event=each)


@check(
    "device.poison_execution.unknown_launch",
    calls=(_POISON,),
    rule="No execution with the launch id runs: nothing is poisoned.",
)
def _poison_nothing(subject: Subject) -> None:
    subject.require(_POISON)
    result = subject.attempt(
        _POISON, device=subject.device, launch_id=12345, error_code="ABORTED", error_message="no such launch"
    )
    if result.error is not None:
        subject.expect_code(result.error, ("NOT_FOUND", "INVALID_ARGUMENT", "UNIMPLEMENTED"), _POISON)
    else:
        subject.expect(not result.poisoned, "nothing that is poisoned", "that something is")
    subject.expect_contents(subject.buffer([1.0, 2.0]), [1.0, 2.0])


@check(
    "device.clear_memory_stats.peak",
    calls=(_CLEAR, _STATS),
    rule="After the statistics of a device are cleared, the peak is what is in use, and what is in use stays.",
)
def _clear(subject: Subject) -> None:
    import numpy as np

    subject.require(_CLEAR, _STATS)
    large = subject.buffer(np.zeros(1 << 18, np.float32))
    subject.destroy_buffers(large)
    kept = subject.buffer(np.zeros(1 << 10, np.float32))
    before = subject.call(_STATS, device=subject.device)
    subject.call(_CLEAR, device=subject.device)
    after = subject.call(_STATS, device=subject.device)
    if after.peak_bytes_in_use_is_set:
        subject.expect(
            after.bytes_in_use <= after.peak_bytes_in_use <= max(before.peak_bytes_in_use, after.bytes_in_use),
            f"a peak from {after.bytes_in_use} to {before.peak_bytes_in_use}",
            after.peak_bytes_in_use,
        )
    subject.expect_contents(kept, np.zeros(1 << 10, np.float32))
