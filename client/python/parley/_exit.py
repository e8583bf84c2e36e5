"""The end of the program.

gRPC serves the calls and the states of a sync channel with daemon threads. The interpreter stops
daemon threads at its end, wherever they are, and only then deletes what the program still holds.
To delete a channel or a call, gRPC waits for those threads or for a lock that one of them holds: it
would wait forever. So what exists at the end of the program is not deleted at all. The operating
system closes the connections.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import weakref


class Pins:
    """Objects that the end of the program does not delete."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.RLock()  # guards the rest; garbage may be collected inside
        self._objects: weakref.WeakSet[object] = weakref.WeakSet()
        self._ending = False
        # Exit handlers run after all threads but the daemon threads have ended, and before those
        # are stopped. Another handler may still use a client: nothing is closed here.
        atexit.register(self._end)

    def add(self, thing: object) -> None:
        """Do not delete the object at the end of the program. Until then it may be deleted."""
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
    """Add a reference that nothing takes away again."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


PINS = Pins()
