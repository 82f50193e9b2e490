"""What a log says in numbers, put into sentences that cards can match: its ending, its loss curve, its memory figures, the machine. Pure.

Each sentence starts with `reading: `. Which cause it speaks for is the cards' business.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

from holdfast.base.files import Json
from holdfast.base.signal_names import killed_by
from holdfast.book.knowledge import has_code, target_of
from holdfast.diagnosis.logs.curve import curve_readings
from holdfast.diagnosis.logs.frames import cut_traceback, raised_in
from holdfast.diagnosis.logs.progress_bars import standing_bar
from holdfast.diagnosis.logs.text import Evidence, Line

_SIGNALS = {int(number): number.name for number in signal.Signals}
_DEATH = r"(Killed|Bus error|Segmentation fault|Aborted|Illegal instruction)"
_ENDINGS = (
    (re.compile(r"exit(?:s|ed)?(?: with)?[ _-]?(?:return )?(?:code|status)s?[ :=]+\(?(-?\d{1,3})\b", re.I), None),
    (re.compile(r"\(?exitcode[ :=]+(-?\d{1,3})\b", re.I), None),
    (re.compile(r"return(?:ed)?[ _-]?(?:code|status)[ :=]+(-?\d{1,3})\b", re.I), None),
    (re.compile(r"(?:[Ss]ignal|on signal|sig(?:nal)?=)[ :]*(?:SIG[A-Z]+ \()?(\d{1,2})\b(?! *%)"), "signal"),
    (re.compile(r"\bSignal: [A-Z][\w ]+ \((\d{1,2})\)"), "signal"),
    (re.compile(r"<Signals\.SIG[A-Z]+: (\d{1,2})>"), "signal"),
    (re.compile(r"code=(?:killed|dumped), status=(\d{1,2})/"), "signal"),  # systemd
    (re.compile(rf": line \d+: +\d+ {_DEATH} {{2,}}"), "name"),  # bash, anywhere
    (re.compile(r"\bterminated with signal (SIG(?:KILL|SEGV|BUS|ABRT|ILL))\b"), "name"),  # torch.multiprocessing.spawn
    (re.compile(r"^\W*(?:killed by |--- )(SIG(?:SEGV|BUS|ABRT|ILL|FPE|KILL))\b"), "name"),  # strace
    (re.compile(r"^\[\d+\] +[-+]? *\d+ (segmentation fault|killed|bus error|abort|illegal hardware instruction)\b"), "name"),  # zsh
    (re.compile(rf"(?:it/s|s/it|\?it)[^\]\n]{{0,400}}\]\W{{0,80}}{_DEATH}\b"), "name"),  # behind a bar
    (re.compile(r"killed by signal: (Killed|Bus error|Aborted|Segmentation fault)", re.I), "name"),
    (re.compile(rf"^\W*(?:\w\S*: (?:line \d+: )?(?:\d+ )?)?{_DEATH}\b[^:]*$", re.I), "name"),
)
_NAMES = {"killed": 9, "bus error": 7, "segmentation fault": 11, "aborted": 6, "abort": 6}
_NAMES |= {"illegal instruction": 4, "illegal hardware instruction": 4}
_NAMES |= {name.lower(): number for number, name in _SIGNALS.items()}
_SIZE = r"(?<![\d.])([\d.]+) ?([KMGT]i?B|bytes)"
_UNITS = {"b": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_ASKED = re.compile(rf"[Tt]ried to allocate {_SIZE}")
_FREE = re.compile(rf"(?:of which {_SIZE} is free|; {_SIZE} free)")
_TOTAL = re.compile(rf"(?:total capacity of {_SIZE}|{_SIZE} total capacity)")
_HELD = re.compile(rf"(?:of the allocated memory {_SIZE} is allocated by PyTorch|{_SIZE} already allocated)", re.I)
_IDLE = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_RESERVED = re.compile(rf"{_SIZE} (?:reserved in total|cached)")  # held and idle, as torch said before 2.1
_OWN = re.compile(rf"(?:{_SIZE} reserved in total|this process has {_SIZE} memory in use)")
_OTHERS = re.compile(rf"Process \d+ has {_SIZE} memory in use", re.I)
_FULL = 0.9  # of the card in this process's hands: what is left to it is fragments
_ROOM = 256 << 20  # the driver and the runtime keep some for themselves, and segments are rounded up
_CARVE_OUT = 9 << 28  # bytes; what a GPU without memory of its own is left with, and no card sold for computing
_CAP = re.compile(rf"{_SIZE} allowed")


def readings(evidence: Evidence) -> Iterator[Line]:
    """Yield all readings, the surest first."""
    if evidence.exit_code is not None:
        yield Line(None, f"reading: {_ending(evidence.exit_code)}")
    for line in evidence.lines:
        yield from _told_ending(line)
        yield from _memory(line)
    yield from curve_readings(evidence.lines)
    for told in (cut_traceback(evidence.lines) or raised_in(evidence.lines), standing_bar(evidence.lines)):
        if told:
            yield told
    yield from machine_readings(evidence.machine)


def _ending(code: int) -> str:
    number = -code if code < 0 else code - 128 if 128 < code < 160 else 0
    return killed_by(number) if number in _SIGNALS else f"ended with exit code {code}"


def _told_ending(line: Line) -> Iterator[Line]:
    """Yield an ending that the log itself tells: a launcher's exit code, a shell's "Killed"."""
    for pattern, kind in _ENDINGS:
        if match := pattern.search(line.text):
            number = _NAMES[match[1].lower()] if kind == "name" else int(match[1])
            ending = _ending(-number if kind else number)
            if ending.startswith("killed"):
                yield Line(line.number, f"reading: {ending}", line.rank)
            return


def _memory(line: Line) -> Iterator[Line]:
    """Yield what an out-of-memory text says beside "out of memory"."""
    asked = _bytes(_ASKED, line.text)
    if asked is None:
        return
    free, total, held, idle = (_bytes(pattern, line.text) for pattern in (_FREE, _TOTAL, _HELD, _IDLE))
    others, cap = _bytes(_OTHERS, line.text), _bytes(_CAP, line.text)
    own = (held or 0.0) + (idle or 0.0)
    if free is not None and free - asked >= _ROOM and not (total and _FULL * total <= own <= total):
        yield Line(line.number, f"reading: {_gib(asked)} asked for while {_gib(free)} are free", line.rank)
    elif free is not None and held is not None and total and _unused(line.text, held, idle, total):
        yield Line(line.number, f"reading: nothing is held by this process, and {_gib(asked)} are refused", line.rank)
    if idle is not None and held is not None and idle >= asked:
        small = "reserved in pieces too small for" if idle >= held / 4 else "lie unused in torch's cache, and in no piece of"
        yield Line(line.number, f"reading: {_gib(idle)} {small} the {_gib(asked)} asked for", line.rank)
    if others is not None and "this process has" in line.text and held is not None and others > held:
        yield Line(line.number, f"reading: another process holds {_gib(others)} of the GPU", line.rank)
    elif others is None and (missing := _held_elsewhere(line.text, free, held, idle, total)):
        yield Line(line.number, f"reading: another process holds {_gib(missing)} of the GPU", line.rank)
    if total is not None and total < _CARVE_OUT and "HIP" in line.text:
        yield Line(line.number, f"reading: the GPU offers {_gib(total)} in all", line.rank)
    if cap is not None and total is not None and cap < total * 0.9:
        yield Line(line.number, f"reading: memory is capped at {_gib(cap)} of {_gib(total)}", line.rank)


def _unused(text: str, held: float, idle: float | None, total: float) -> bool:
    if idle is None:
        return held == 0 == _bytes(_RESERVED, text)
    return held + idle < total * 0.05


def _held_elsewhere(text: str, free: float | None, held: float | None, idle: float | None, total: float | None) -> float:
    """Return the bytes of the card held by other processes where they are most of it; 0 else, or where the figures do not add up."""
    own = _bytes(_OWN, text)
    if own is None and held is not None and idle is not None:
        own = held + idle
    if own is None or free is None or held is None or total is None or held > own:
        return 0.0
    return max(total - own - free, 0.0) if own + free < total / 2 else 0.0


def _bytes(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    if match is None:
        return None
    number, unit = [group for group in match.groups() if group]
    try:
        return float(number) * _UNITS[unit[0]]
    except ValueError:
        return None


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.2f} GiB"


def machine_readings(machine: Json) -> Iterator[Line]:
    """Yield the facts of a machine file as sentences, and what follows from two of them."""
    for path, value in _leaves(machine | {"devices": _nodes_of_concern(machine)}, ""):
        if not (machine.get("gpus") == [] and "+cpu" in str(value)):  # where there is no GPU, that is the right torch
            yield Line(None, " ".join(f"reading: machine {path} = {value}".split("\n")))
    torch, gpus, env = machine.get("torch"), machine.get("gpus"), machine.get("env")
    listed = tuple(map(str, torch["arch_list"])) if isinstance(torch, dict) and isinstance(torch.get("arch_list"), list) else ()
    archs = [str(gpu["arch"]) for gpu in gpus if isinstance(gpu, dict) and gpu.get("arch")] if isinstance(gpus, list) else []
    claimed = target_of(str(env.get("HSA_OVERRIDE_GFX_VERSION"))) if isinstance(env, dict) else None
    if not listed or claimed in listed or any(has_code(arch, listed) for arch in archs):  # beside a card that works, others are idle
        return
    for arch in dict.fromkeys(archs):
        yield Line(None, " ".join(f"reading: torch has no code for {arch} (it was built for {' '.join(listed)})".split("\n")))


def _nodes_of_concern(machine: Json) -> Json:
    """Return the device nodes without those that are not there and ought not to be, and those that torch does not open."""
    gpus, torch, nodes = machine.get("gpus"), machine.get("torch"), machine.get("devices")
    vendors = {gpu.get("vendor") for gpu in gpus if isinstance(gpu, dict)} if isinstance(gpus, list) else set[object]()
    built = torch if isinstance(torch, dict) else {}
    for_amd, for_nvidia = (built.get(key) or mark in str(built.get("version")) for key, mark in (("hip", "+rocm"), ("cuda", "+cu")))

    def concerns(path: str, node: object) -> bool:
        vendor, other = ("nvidia", for_amd) if "nvidia" in path else ("amd", for_nvidia)
        return not other and (vendor in vendors or (isinstance(node, dict) and node.get("exists") is not False))

    return {path: node for path, node in nodes.items() if concerns(path, node)} if isinstance(nodes, dict) else {}


def _leaves(tree: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, list) and path != "torch.arch_list":
        for value in tree:
            yield from _leaves(value, path)
    elif tree is not None:
        yield path, tree
