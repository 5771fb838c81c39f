# cython: language_level=3
"""Bytes between two sockets, copied in native code.

Functions of jaxlib may wait for the coordination service while they hold the interpreter's lock. The service's answer
passes through this process, so nothing on its way may need the lock.
"""

from libc.errno cimport EAGAIN, EINTR, errno


cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    short POLLIN
    short POLLOUT
    short POLLERR
    short POLLHUP
    short POLLNVAL
    int poll(pollfd *fds, unsigned long count, int timeout)

cdef extern from "<unistd.h>" nogil:
    ssize_t read(int fd, void *buffer, size_t count)
    ssize_t write(int fd, const void *buffer, size_t count)


cdef enum:
    SIZE = 1 << 16


cdef struct Direction:
    int source
    int sink
    size_t start
    size_t end
    char data[SIZE]


cdef bint _again() noexcept nogil:
    return errno == EAGAIN or errno == EINTR


cdef bint _move(Direction *way, int *ended) noexcept nogil:
    """Read or write once; return whether both ends are still open."""
    cdef ssize_t count
    if way.start == way.end:
        count = read(way.source, way.data, SIZE)
        if count == 0 or (count < 0 and not _again()):
            ended[0] = way.source
            return False
        if count > 0:
            way.start = 0
            way.end = <size_t>count
    if way.start < way.end:
        count = write(way.sink, way.data + way.start, way.end - way.start)
        if count < 0 and not _again():
            ended[0] = way.sink
            return False
        if count > 0:
            way.start += <size_t>count
    return True


cdef int _run(int near, int far) noexcept nogil:
    cdef Direction forth
    cdef Direction back
    cdef pollfd[2] sockets
    cdef int ended = far
    forth.source, forth.sink, forth.start, forth.end = near, far, 0, 0
    back.source, back.sink, back.start, back.end = far, near, 0, 0
    sockets[0].fd = near
    sockets[1].fd = far
    while True:
        # A way with data waits until it can write them, one without waits until it can read some.
        sockets[0].events = (POLLIN if forth.start == forth.end else 0) | (POLLOUT if back.start < back.end else 0)
        sockets[1].events = (POLLIN if back.start == back.end else 0) | (POLLOUT if forth.start < forth.end else 0)
        if poll(sockets, 2, -1) < 0:
            if errno == EINTR:
                continue
            return ended
        if sockets[0].revents & (POLLERR | POLLHUP | POLLNVAL) and not sockets[0].revents & POLLIN:
            return near
        if sockets[1].revents & (POLLERR | POLLHUP | POLLNVAL) and not sockets[1].revents & POLLIN:
            return far
        if not _move(&forth, &ended) or not _move(&back, &ended):
            return ended


def pump(int near, int far) -> int:
    """Copy bytes between two sockets that do not block, in both directions; return the socket that ended."""
    cdef int ended
    with nogil:
        ended = _run(near, far)
    return ended
