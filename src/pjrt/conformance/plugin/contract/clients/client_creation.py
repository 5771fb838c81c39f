"""Checks of making and destroying clients."""

from __future__ import annotations

import threading

from pjrt.capi import raw
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.subject import Subject

_CREATE = "PJRT_Client_Create"
_DESTROY = "PJRT_Client_Destroy"
_ORDERS = {"first_first": (0, 1, 2), "last_first": (2, 1, 0), "middle_first": (1, 0, 2)}
_VALUES = {"string": "text", "int64": 7, "int64_list": [1, 2], "float": 0.5, "bool": True}


def _options(subject: Subject, **more: object) -> list[raw.Struct]:
    return [raw.named_value(name, value) for name, value in {**subject.options, **more}.items()]


def _is_alive(subject: Subject, client: int) -> None:
    devices = subject.call("PJRT_Client_Devices", client=client).devices
    subject.expect(devices, "a client with devices", "none")


@check(
    "client.destroy.order",
    calls=(_CREATE, _DESTROY),
    rule="Clients are independent: in whatever order they are destroyed, the others work on.",
    over=_ORDERS,
)
def _destroy_order(subject: Subject, order: tuple[int, ...]) -> None:
    clients = [subject.new_client() for _ in order]
    subject.expect(len(set(clients)) == len(clients), "different clients", "the same one")
    left = dict(enumerate(clients))
    for number in order:
        subject.call(_DESTROY, client=left.pop(number))
        for client in left.values():
            _is_alive(subject, client)


@check("client.destroy.null", calls=(_DESTROY,), rule="A client to destroy can be a null pointer.")
def _destroy_null(subject: Subject) -> None:
    subject.call(_DESTROY, client=0)


@check(
    "client.create.again",
    calls=(_CREATE, _DESTROY),
    rule="A client can be made after another was destroyed.",
)
def _create_again(subject: Subject) -> None:
    for _ in range(3):
        client = subject.new_client()
        _is_alive(subject, client)
        subject.call(_DESTROY, client=client)


@check(
    "client.create.in_threads",
    calls=(_CREATE, _DESTROY),
    rule="Clients can be made and destroyed in several threads at once.",
)
def _create_in_threads(subject: Subject) -> None:
    subject.client  # noqa: B018  # one client can be made at all
    errors: list[str] = []

    def live() -> None:
        result = subject.attempt(_CREATE, create_options=_options(subject))
        if result.error is not None:
            errors.append(str(result.error))
        else:
            subject.attempt(_DESTROY, client=result.client)

    threads = [threading.Thread(target=live) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    subject.expect(not errors, "4 clients", "; ".join(errors))


@check(
    "client.create.without_options",
    calls=(_CREATE,),
    rule="Options are optional: with a null pointer and 0 of them a client is made, or the error names what is "
    "missing.",
)
def _without_options(subject: Subject) -> None:
    subject.client  # noqa: B018  # one client can be made at all
    result = subject.attempt(_CREATE, create_options=0, num_options=0)
    if result.error is not None:
        subject.expect(subject.options, "a client without options", str(result.error))
        subject.expect(result.error.message, "an error with a message", "none")
    else:
        _is_alive(subject, result.client)


@check(
    "client.create.unknown_option",
    calls=(_CREATE,),
    rule="An option that the plugin does not know is an error with a message, or is ignored.",
    over=_VALUES,
)
def _unknown_option(subject: Subject, value: object) -> None:
    subject.client  # noqa: B018  # one client can be made at all
    result = subject.attempt(_CREATE, create_options=_options(subject, no_such_option_of_any_plugin=value))
    if result.error is None:
        _is_alive(subject, result.client)
    else:
        subject.expect(result.error.message, "an error with a message", "none")


@check(
    "client.create.options_are_copied",
    calls=(_CREATE,),
    rule="The memory of options is the plugin's only during the call.",
)
def _options_are_copied(subject: Subject) -> None:
    result = subject.attempt(_CREATE, create_options=_options(subject))
    if result.error is not None:
        subject.client  # noqa: B018  # the reason why none can be made
    client = result.client
    del result
    _is_alive(subject, client)
    subject.call("PJRT_Client_PlatformName", client=client)
    subject.call(_DESTROY, client=client)


@check(
    "client.create.without_key_value_store",
    calls=(_CREATE,),
    rule="The callbacks of the key-value store are optional, and may be null pointers one by one.",
    over=("kv_get_callback", "kv_put_callback", "kv_try_get_callback"),
)
def _without_store(subject: Subject, name: str) -> None:
    subject.client  # noqa: B018  # one client can be made at all
    names = ("kv_get_callback", "kv_put_callback", "kv_try_get_callback")
    stores = {each: lambda _: 0 for each in names if each != name}
    result = subject.attempt(_CREATE, create_options=_options(subject), **stores)
    if result.error is None:
        _is_alive(subject, result.client)
    else:
        subject.expect(result.error.message, "an error with a message", "none")
