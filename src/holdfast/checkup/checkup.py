"""What the doctor shows: the machine in short, findings with their fixes, the environment, the verdict. Plain lines without a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from holdfast.base.files import Json
from holdfast.base.inert import hanging, inert
from holdfast.book.image import ContainerImage
from holdfast.book.kinds.variable import VariableAdvice
from holdfast.machine.facts import Machine
from holdfast.machine.machine_file import read
from holdfast.run.types import Finding

_COLOURS = {"block": "bold red", "warn": "yellow", "info": "cyan", "blocked": "bold red", "risky": "yellow", "ready": "green"}
VERDICTS = {
    "ready": "ready: nothing stands in the way of a run",
    "risky": "risky: a run can start; look at the warnings first",
    "blocked": "blocked: a run would fail; fix what is marked block",
}


class DoctorView:
    """The doctor's voice."""

    def __init__(self, to_stderr: bool) -> None:
        self.console = Console(stderr=to_stderr, highlight=False, soft_wrap=True)
        self.wide = self.console.is_terminal

    def machine(self, facts: Json) -> None:
        for name, value in summary(read(facts)):
            self._line(f"{name:<9}", value, "dim")
        self.console.print()

    def findings(self, findings: list[Finding]) -> None:
        for finding in findings:
            sure = "" if finding.standing == "confirmed" else f" [{finding.standing}]"
            self._line(f"{finding.severity:<6}", f"{finding.id}: {finding.message}{sure}", _COLOURS[finding.severity])
            for mark, text in (("->", finding.fix), ("", finding.source if finding.severity != "info" or finding.fix else "")):
                if text:
                    self._inset(f"{mark} {text}".strip())
        if findings:
            self.console.print()

    def environment(self, advised: list[VariableAdvice], taken: Mapping[str, str]) -> None:
        """Print what is advised. taken: the user's own variables, which nothing changes."""
        for advice in advised:
            told = "set by `holdfast train` itself" if advice.standing == "confirmed" else "not set by itself: try it"
            if (own := taken.get(advice.name)) is not None:
                told = "set already" if own == advice.value else f"yours is {own!r} and stays: unset {advice.name}"
            self._line("env   ", f"{advice.name}={advice.value}  ({advice.standing}, {told}): {advice.reason}", "cyan")
        if advised:
            self.console.print()

    def verdict(self, verdict: str, then: str = "") -> None:
        """Print the verdict. then: the command that follows it."""
        self._line("", VERDICTS[verdict], _COLOURS[verdict])
        if then:
            self.console.print(Text(f"next: {inert(then)}"))

    def saved(self, path: object) -> None:
        self.console.print(f"the profile is in {path}; use it with: set -a; source {path}; set +a", markup=False)

    def reported(self, path: object, taken: dict[str, int]) -> None:
        words = ", ".join(f"{count} x {kind}" for kind, count in taken.items()) or "nothing"
        self.console.print(f"the report is in {path} (taken out: {words}); read it, then attach it to an issue", markup=False)

    def image(self, image: ContainerImage) -> None:
        self._line("image ", f"{image.base}: {image.reason}", "cyan")
        for text in (f"-> in a clone of holdfast: {image.build}", f"-> {image.run}", image.source):
            self._inset(text)

    def contrast(self, answer: Json) -> None:
        for entry in answer["differences"]:
            self.console.print(inert(f"{entry['key']}: {_shown(entry['a'])} | {_shown(entry['b'])}"), markup=False)
        for rate in answer["rates"]:
            self.console.print(f"{rate['what']}: the second has {rate['b_over_a']:.2f} times the speed of the first", markup=False)
        for side in ("a", "b"):
            for finding in answer["findings"][f"only_{side}"]:
                self._line(f"only {side}", f"{finding['severity']} {finding['id']}: {finding['message']}", _COLOURS[finding["severity"]])
        if not answer["differences"]:
            self.console.print("the two machines are the same")

    def _line(self, mark: str, text: str, style: str) -> None:
        if self.wide:
            begins_at = len(mark) + 1 if mark else 0
            text = hanging(inert(text), self.console.width, begins_at, begins_at)
            self.console.print(f"[{style}]{escape(inert(mark))}[/] {escape(text)}" if mark else f"[{style}]{escape(text)}[/]")
        else:
            self.console.print(inert(f"{mark} {text}").strip(), markup=False)

    def _inset(self, text: str) -> None:
        """Print a line of its own, whole: the terminal wraps it, so that a command can be copied at any width."""
        style = "dim" if self.wide and text.startswith("http") else ""
        self.console.print(Text(f"       {inert(text)}", style=style))


def _shown(value: object) -> str:
    return "unknown" if value is None else str(value)


def summary(machine: Machine) -> list[tuple[str, str]]:
    """Summarise the machine as pairs (name, value)."""
    torch = machine.torch
    places = [word for word, true in (("WSL", machine.wsl), ("container", machine.container)) if true]
    system = f"{machine.distro or 'unknown'}, kernel {machine.kernel or 'unknown'}" + (f" ({', '.join(places)})" if places else "")
    built = (
        {"rocm": f"ROCm {torch.rocm}", "cuda": f"CUDA {torch.cuda or ''}", "cpu": "the CPU"}.get(torch.backend or "", "?") if torch else ""
    )
    drivers = [f"amdgpu {machine.amd_driver}" if machine.amd_driver else "", f"NVIDIA {machine.cuda_driver}" if machine.cuda_driver else ""]
    drivers.append(f"/opt/rocm {machine.rocm}" if machine.rocm else "")
    lines = [
        ("system", system),
        ("memory", f"{_gib(machine.memory_bytes)}, /dev/shm {_gib(machine.shm_bytes)}, disk {_gib(machine.disk_free_bytes)} free"),
        ("drivers", ", ".join(filter(None, drivers))),
        ("torch", f"{torch.version}, built for {built.strip()}" if torch else ""),
        ("Python", machine.python or "unknown"),
        ("packages", ", ".join(f"{name} {version}" for name, version in machine.packages.items() if version and name != "torch")),
    ]
    cards = [("GPU", f"{gpu.words()}, {_gib(gpu.memory_bytes)}" + (", integrated" if gpu.integrated else "")) for gpu in machine.gpus]
    return [
        (name, text)
        for name, text in (*lines[:2], *(cards or [("GPU", "none found" if machine.gpus_known else "unknown")]), *lines[2:])
        if text
    ]


def _gib(value: int | None) -> str:
    return "unknown" if value is None else f"{value / 2**30:.1f} GiB"
