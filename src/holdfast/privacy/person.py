"""Whose traces are to go from what is shown to others: this user's and this machine's. privacy/scrub.py takes them out."""

from __future__ import annotations

import contextlib
import getpass
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

from holdfast.privacy.scrub import Person, hosts_in, names_in, secrets_of


def person(
    texts: Iterable[str], environment: Mapping[str, str], paths: Mapping[str, str] | None = None, hosts: Iterable[str] = ()
) -> Person:
    """Collect the traces of this user and machine, and the users whose home folders stand in `texts`. `paths`: placeholder by folder."""
    texts = list(texts)
    users, named = set(names_in(texts)), {}
    with contextlib.suppress(OSError, KeyError, RuntimeError):  # a container's user without a name or a home
        named[str(Path.home())] = "~"
        users |= {Path.home().name, getpass.getuser(), environment.get("SUDO_USER", "")}
    known = {platform.node(), *hosts, *hosts_in(texts)}
    known |= {host.partition(".")[0] for host in known}
    return Person(frozenset(users), frozenset(known), named | dict(paths or {str(Path.cwd()): "FOLDER"}), secrets_of(environment))
