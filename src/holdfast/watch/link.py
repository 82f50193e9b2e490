"""The link to the page: the address of this machine in its network, and the link as a QR code for a phone's camera."""

from __future__ import annotations

import importlib
import importlib.util
import io
import socket


def lan_address() -> str:
    """Return the address by which other machines of the network reach this one; loopback where it has none. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation: only the route to it is looked up
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def qr_code(text: str) -> str | None:
    """Render the text as a QR code of block characters; None where the package segno is not installed."""
    if importlib.util.find_spec("segno") is None:
        return None
    drawn = io.StringIO()
    importlib.import_module("segno").make(text, error="l").terminal(drawn, compact=True)
    return drawn.getvalue()
