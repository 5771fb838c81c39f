"""What of a plugin is alive: whether its library may be taken out of the process.

The count and the decision are one step, in which no other thread runs and no object is made that the garbage collector
looks after: it might end something meanwhile.
"""

from cpython.object cimport PyObject

from pjrt.capi._api cimport Api, pjrt_tally
from pjrt.capi._scope cimport ClientScope, Handle, Scope

import re

cdef extern from "pjrt_support/wait.h" nogil:
    long pjrt_tally_read(pjrt_tally *tally)


cdef dict take_down(Api api):
    """Ends a plugin of which nothing is alive: its functions are not called any more. Returns what is alive."""
    cdef dict counts = {}
    _count(api, counts)
    if not counts:
        api.forget()
    return counts


cdef dict alive(Api api):
    """Kinds of things and how many there are."""
    cdef dict counts = {}
    _count(api, counts)
    return {_readable(kind): number for kind, number in counts.items()}


cdef int _count(Api api, dict counts) except -1:
    cdef PyObject *found
    cdef PyObject *link
    cdef long owed = 0
    if api.table == NULL:
        return 0
    for address in api.scopes:
        found = <PyObject *><size_t>address
        if found.ob_refcnt == 0:
            continue  # it is being freed, by a call that is counted as under way
        if isinstance(<object>found, ClientScope) and (<ClientScope>found).native != NULL:
            counts["client"] = counts.get("client", 0) + 1
        link = (<Scope>found).first
        while link != NULL:
            kind = type(<object>link)
            counts[kind] = counts.get(kind, 0) + 1
            link = (<Handle>link).next
    owed = pjrt_tally_read(api.waits)
    if max(owed, <long>api.events):
        counts["future"] = max(owed, <long>api.events)
    if api.profilers:
        counts["profiling session"] = api.profilers
    if api.in_flight:
        counts["call under way"] = api.in_flight
    return 0


def _readable(kind):
    """``LoadedExecutable`` of a plugin is a ``loaded executable``; what has no name of its own is a topology's."""
    if isinstance(kind, str):
        return kind
    if kind is Handle:
        return "topology"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__.removeprefix("Plugin")).lower()
