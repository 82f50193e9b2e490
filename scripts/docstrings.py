"""Count the functions whose docstring begins with no verb, by room: `python scripts/docstrings.py [ROOM]`; of a room it lists them.

A docstring says first what the function does: Return, Yield, Read, Raise ... Properties are let off: they are read as names.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE, ALLOWED = ROOT / "src" / "holdfast", ROOT / "tests" / "project" / "docstrings.txt"
VERBS = frozenset(
    """
    Accept Accumulate Acquire Activate Add Adjust Adopt Advance Agree Align Allocate Allow Announce Answer Append Apply Arrange Ask Assert
    Assign Attach Attend Average Await Begin Bind Block Break Bring Broadcast Build Cache Call Cancel Carry Cast Change Check Choose Clean
    Clear Clip Close Collect Combine Commit Compare Compress Compute Condition Confirm Connect Consider Consume Convert Copy Correct Count
    Create Cut Decide Decode Decompress Define Delete Demand Dequantise Derive Describe Detach Detect Diagnose Disable Discard Display
    Divide Do Double Download Drain Draw Drop Embed Enable Encode End Enforce Ensure Enter Enumerate Escape Estimate Evaluate Exclude Exit
    Expand Explain Export Expose Extend Extract Factor Fail Fall Feed Fetch Fill Filter Find Finish Fit Fix Flag Flatten Flush Follow
    Forecast Forget Fork Format Forward Free Gather Generate Give Go Group Grow Guess Halve Hand Handle Hash Have Hear Hide Hold Identify
    Ignore Import Include Infer Initialise Insert Inspect Install Interpret Intersect Invert Isolate Iterate Join Journal Judge Keep Kill
    Launch Lay Learn Leave Let Lift Limit Link List Listen Load Locate Lock Log Look Lower Make Map Mark Mask Match Measure Mend Merge
    Minimise Mirror Modify Mount Move Multiply Mute Name Normalise Note Notify Observe Obtain Offer Open Overwrite Pack Pad Pair Parse
    Pass Paste Patch Pause Permute Persist Pick Pin Place Plan Poll Predict Prefer Prepare Prepend Preserve Pretend Print Promote Propose
    Protect Prove Provide Prune Publish Pull Push Put Quantise Query Quote Raise Reach Read Reap Rearrange Rebuild Receive Recognise
    Recompute Record Recover Redact Reduce Refuse Register Reject Relay Release Reload Remember Remind Remove Rename Render Repair Repeat
    Replace Replay Reply Report Request Require Resample Reserve Reset Reshape Resolve Restore Resume Retry Return Reuse Reverse Rewrite
    Roll Rotate Round Run Sample Save Say Scale Scan Score Scrub Seal Search See Seek Select Send Serve Set Shard Share Shift Shorten Show
    Shrink Shut Silence Simulate Skip Solve Sort Spawn Speak Split Spread Stage Start Stop Store Stream Strip Submit Subscribe Subtract
    Sum Summarise Supervise Suppress Survey Swap Switch Synchronise Tabulate Tag Take Tell Terminate Test Throw Time Tokenise Touch Trace
    Train Transfer Transform Translate Traverse Treat Trigger Trim Truncate Trust Try Tune Turn Undo Unlock Unpack Unregister Unset Unwrap
    Update Upgrade Upload Use Validate Vary Verify View Visit Wait Wake Walk Warm Warn Watch Weigh Widen Wipe Withdraw Work Wrap Write
    Yield Zero
    """.split()  # noqa: SIM905
)


def docstrings(file: Path) -> Iterator[tuple[str, str, bool]]:
    """Yield (name, first line, whether it lacks a verb) of each function of a file that has a docstring and is no property."""
    yield from _functions(ast.parse(file.read_text(encoding="utf-8")), "")


def _functions(node: ast.AST, within: str) -> Iterator[tuple[str, str, bool]]:
    for inner in ast.iter_child_nodes(node):
        if not isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _functions(inner, within)
            continue
        name = f"{within}{inner.name}"
        yield from _functions(inner, f"{name}.")
        text = None if isinstance(inner, ast.ClassDef) or _is_property(inner) else ast.get_docstring(inner)
        if text:
            line = text.split("\n")[0]
            yield name, line, line.split()[0].rstrip(":,.") not in VERBS and not line.startswith("True if ")


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def lacking() -> dict[str, list[str]]:
    """Return, by file, "name: first line" of the docstrings that lack a verb."""
    found: dict[str, list[str]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        lines = [f"{name}: {line}" for name, line, lacks in docstrings(file) if lacks]
        if lines:
            found[file.relative_to(SOURCE).as_posix()] = lines
    return found


def main(rooms: list[str]) -> None:
    """Print the share of each room and, of `rooms`, the docstrings that lack a verb. `--write`: write tests/project/docstrings.txt."""
    if rooms == ["--write"]:
        ALLOWED.write_text("".join(f"{path} {len(lines)}\n" for path, lines in lacking().items()), encoding="utf-8")
        return
    counts: dict[str, list[bool]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        path = file.relative_to(SOURCE).as_posix()
        for name, line, lacks in docstrings(file):
            counts.setdefault(path.split("/")[0], []).append(lacks)
            if lacks and path.split("/")[0] in rooms:
                print(f"{path} {name}: {line}")
    counts["all"] = [lacks for one in counts.values() for lacks in one]
    for room, lack in counts.items():
        print(f"{room:<16} {sum(lack):>5} of {len(lack):>5}  {sum(lack) / len(lack):4.0%}")


if __name__ == "__main__":
    main(sys.argv[1:])
