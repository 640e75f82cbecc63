"""Calls of the buffer callbacks, as CUPTI makes them."""

import ctypes

from overlaptop.agent.sources.cupti.callbacks import BUFFER_BYTES

REQUEST = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)
COMPLETE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)


def request(callback):
    """Ask for a buffer as CUPTI does: its address, its size and how many records may go in."""
    address, size, records = ctypes.c_void_p(1), ctypes.c_size_t(1), ctypes.c_size_t(99)
    REQUEST(callback.value)(*map(ctypes.addressof, (address, size, records)))
    return address.value, size.value, records.value


def complete(callback, address, valid_bytes):
    COMPLETE(callback.value)(None, 0, address, BUFFER_BYTES, valid_bytes)
