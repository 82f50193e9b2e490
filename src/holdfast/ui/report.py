"""x"""
from pathlib import Path
from holdfast.core.run import RunFolder
def write_report(run: RunFolder, out: Path) -> None:
    out.write_text("todo")
