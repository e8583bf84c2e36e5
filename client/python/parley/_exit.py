"""Which objects must not be deleted at the end of the program.

gRPC runs the calls and watches the state of a sync channel in daemon threads. The interpreter
stops daemon threads at its end, wherever they are, and then deletes the remaining objects. When
a channel or a call is deleted, gRPC waits for those threads, or for a lock that one of them
holds. It would wait forever. So this module prevents that deletion. The operating system closes
the connections.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import weakref


class RetainedAtExit:
    """Objects that are not deleted at the end of the program."""

    def __init__(self) -> None:
        """Start with no objects."""
        self._lock = threading.RLock()  # guards the fields below; garbage collection may run inside
        self._objects: weakref.WeakSet[object] = weakref.WeakSet()
        self._ending = False
        # Exit handlers run after all other threads have ended and before daemon threads are
        # stopped. Another handler may still use a client, so nothing is closed here.
        atexit.register(self._end)

    def add(self, thing: object) -> None:
        """Retain the object at the end of the program. It may be deleted before that."""
        with self._lock:
            if self._ending:
                leak(thing)
            else:
                self._objects.add(thing)

    def _end(self) -> None:
        with self._lock:
            self._ending = True
            for thing in self._objects:
                leak(thing)


def leak(thing: object) -> None:
    """Add a reference that is never removed."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


RETAINED_AT_EXIT = RetainedAtExit()
