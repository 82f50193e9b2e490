"""Random but plausible values for tiny's pretraining text (ports, paths, names ...). No sentences; those are in skills.py."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from words import DEVICES, INTERFACES, PARTS, PLAIN, PROPER, SEGMENTS, SERVICES, SYLLABLES, TOOLS, TYPES, USERS, words

SUFFIXES = words(
    "conf yaml json txt log gz tar.gz db img iso qcow2 gguf safetensors jsonl csv pem crt key service timer mount socket py sh sql bak rdb"
)


def made_up(rng: Random) -> str:
    """A word that stands in no dictionary."""
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 4)))


def name(rng: Random) -> str:
    """A name as people give to hosts, containers, volumes and accounts."""
    roll = rng.random()
    word = rng.choice(rng.choice((PARTS, PARTS, SEGMENTS, SERVICES, USERS, PLAIN)))
    if roll < 0.45:
        return word
    if roll < 0.62:
        return f"{word}{rng.choice(('-', '_', '-'))}{rng.choice(rng.choice((PARTS, SEGMENTS)))}"
    if roll < 0.76:
        return f"{word}{rng.choice(('', '-', '0'))}{rng.randint(1, 99)}"
    if roll < 0.86:
        return made_up(rng)
    return f"{made_up(rng)}-{word}"


def host(rng: Random) -> str:
    roll = rng.random()
    if roll < 0.35:
        return name(rng)
    if roll < 0.7:
        return f"{rng.choice(PARTS)}.{rng.choice(('example.org', 'example.com', 'lan', 'internal', 'example.net', 'test'))}"
    return address(rng)


def address(rng: Random) -> str:
    first = rng.choice(("10", "192.168", "172.16", "10.0", "10.20", "192.0.2", "198.51.100"))
    return ".".join([first, *(str(rng.randint(0, 254)) for _ in range(4 - len(first.split("."))))])


def network(rng: Random) -> str:
    third = rng.randint(0, 254)
    return rng.choice((f"10.{third}.0.0/16", f"192.168.{third}.0/24", f"10.{third}.{rng.randint(0, 254)}.0/24", f"172.16.{third}.0/24"))


def path(rng: Random) -> str:
    steps = [rng.choice(SEGMENTS)] + [name(rng) if rng.random() < 0.5 else rng.choice(SEGMENTS) for _ in range(rng.randint(0, 2))]
    return "/" + "/".join(steps)


def file(rng: Random) -> str:
    stem = f"{name(rng)}.{rng.choice(SUFFIXES)}"
    return stem if rng.random() < 0.4 else f"{path(rng)}/{stem}"


def number(rng: Random) -> str:
    top = rng.choice((9, 20, 99, 100, 999, 4096, 9999, 65535, 100000))
    return str(rng.choice((rng.randint(0, top), 2 ** rng.randint(0, 17), 10 * rng.randint(1, 200))))


def port(rng: Random) -> str:
    return str(rng.choice((22, 25, 53, 80, 443, 3306, 5432, 6379, 8000, 8080, 8443, 9090, *(rng.randint(1024, 65535) for _ in range(30)))))


def size(rng: Random) -> str:
    return f"{rng.choice((rng.randint(1, 999), 2 ** rng.randint(0, 10)))}{rng.choice(('G', 'M', 'K', 'T', 'GiB', 'MiB', 'g', 'm'))}"


def share(rng: Random) -> str:
    return rng.choice((f"{rng.randint(1, 400)}%", f"0.{rng.randint(1, 99)}", f"{rng.randint(1, 9)}e-{rng.randint(2, 6)}"))


def moment(rng: Random) -> str:
    hour, minute = rng.randint(0, 23), rng.randint(0, 59)
    return rng.choice(
        (
            f"{hour:02}:{minute:02}",
            f"20{rng.randint(20, 39)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
            f"{rng.randint(1, 90)}{rng.choice(('s', 'min', 'h', 'd', 'days', ' minutes', ' days', ' hours'))}",
        )
    )


def version(rng: Random) -> str:
    return ".".join(str(rng.randint(0, 30)) for _ in range(rng.randint(2, 3)))


def code(rng: Random) -> str:
    """Letters and digits without sense, as in digests and identifiers."""
    return "".join(rng.choice("0123456789abcdef") for _ in range(rng.randint(4, 10)))


def image(rng: Random) -> str:
    where = rng.choice(
        ("", "", f"{rng.choice(('quay.io', 'docker.io', 'registry.example.org', 'ghcr.io', 'localhost'))}/{rng.choice(PARTS)}/")
    )
    return f"{where}{rng.choice(SERVICES)}:{rng.choice((version(rng), 'latest', 'stable', 'v' + str(rng.randint(1, 20))))}"


def user(rng: Random) -> str:
    return rng.choice(USERS)


def service(rng: Random) -> str:
    return rng.choice(SERVICES) + rng.choice(("", "", "", ".service", ".timer", ".socket"))


def device(rng: Random) -> str:
    return rng.choice(DEVICES)


def interface(rng: Random) -> str:
    return rng.choice(INTERFACES)


def term(rng: Random) -> str:
    return rng.choice(rng.choice((TYPES, TYPES, TOOLS)))


def word(rng: Random) -> str:
    return rng.choice(rng.choice((PLAIN, PARTS, SERVICES, TOOLS, TYPES, PROPER)))


# What a slot is called in a sentence -> what can stand in it.
KINDS: dict[str, Callable[[Random], str]] = {
    "port": port,
    "path": path,
    "directory": path,
    "folder": path,
    "mount point": path,
    "file": file,
    "config file": file,
    "log file": file,
    "archive": file,
    "user": user,
    "account": user,
    "owner": user,
    "group": name,
    "host": host,
    "server": host,
    "address": address,
    "gateway": address,
    "network": network,
    "subnet": network,
    "service": service,
    "unit": service,
    "container": name,
    "pod": name,
    "volume": name,
    "machine": name,
    "guest": name,
    "database": name,
    "table": name,
    "zone": name,
    "profile": name,
    "queue": name,
    "job": name,
    "branch": name,
    "pool": name,
    "dataset": name,
    "model": file,
    "image": image,
    "size": size,
    "limit": size,
    "memory limit": size,
    "cache size": size,
    "device": device,
    "disk": device,
    "partition": device,
    "interface": interface,
    "version": version,
    "digest": code,
    "key": name,
    "label": term,
    "setting": term,
    "option": term,
    "package": service,
    "module": name,
    "level": number,
    "count": number,
    "value": number,
    "id": number,
    "timeout": moment,
    "date": moment,
    "interval": moment,
    "share": share,
    "rate": share,
    "threads": number,
    "workers": number,
    "batch size": number,
    "rank": number,
    "seed": number,
    "tag": word,
    "pattern": word,
    "name": name,
    "title": word,
    "mode": word,
    "command": term,
}
