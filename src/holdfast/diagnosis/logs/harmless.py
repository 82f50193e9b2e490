"""Lines that healthy programs print although they sound like trouble: warnings, fallbacks that work, counts of nothing. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from holdfast.diagnosis.logs.text import Line

_NEVER = re.compile(  # the program tries again, or goes on with something as good
    r"socket\.cpp:\d+\].*errno: (?:97|99)\b"  # localhost by IPv6, before it is tried by IPv4
    r"|^wandb: Network error .*retry loop|^\s*Retrying in \d+s? \[Retry"
    r"|NCCL INFO (?:NET/(?:Plugin\b|IB : No device found)|P2P is disabled between connected)"  # its own transport is taken then
    r"|expandable_segments not supported on this platform"  # so the option has no effect
    r"|hipBLASLt on an? unsupported architecture! Overriding blas backend"
    r"|Unable to find hostfile, will proceed with training with local resources"  # of each start of DeepSpeed on one machine
    r"|does not match the version torch was compiled with .{0,20}but since the APIs are compatible"
    r"|Skipping import of cpp extensions due to incompatible torch version"
    r"|`trust_remote_code` is to be used with Auto classes"
    r"|not installed\. Reverting to non-apex"
)
_ALONE = re.compile(  # says something only where something failed beside it
    r"(?:Future|Deprecation|PendingDeprecation)Warning:"
    r"|Some weights of .*(?:newly initiali[sz]ed|not initiali[sz]ed from)|You should probably TRAIN this model"
    r"|Token indices sequence length is longer than"
    r"|Setting OMP_NUM_THREADS environment variable"
    r"|process group has NOT been destroyed before|to perform barrier as devices used by this"
    r"|Unable to register cu\w+ factory"
    r"|[Xx]formers is not installed correctly|No label_names provided for model class|Repo card metadata block was not found"
    r"|Detected kernel version \S+ which is below the recommended minimum"
    r"|not (?:installed|found|available)\b.{0,40}?\b(?:[Uu]sing|[Ff]alls? back|[Ff]alling back|[Ss]kipp\w+)(?!.*\bCPU\b)"
    r"|[Cc]ould not find .{0,60}, skipping"
    r"|NVRM: loading NVIDIA|nvidia-uvm: Loaded the UVM|Nvlink Core is being initialized|nvidia-modeset: Loading"
    r"|\[drm\] (?:Initialized|Loading driver)|NOTE: The SHMEM allocation limit is set to the default"
    r"|^(?!.*\bERR!).*?(?<!\d)\d{1,3}MiB */ *\d{4,}MiB.*\bDefault\b",  # a row of nvidia-smi, of an idle GPU that answers
    re.M,
)
_NOUGHT = re.compile(  # counts of nothing, rates, settings, and words that only hold one of trouble
    r"\b(?:0|no|zero) (?:errors?|failures?|failed|timeouts?|nans?|crashes)\b"
    r"|\b(?:errors?|fail(?:ures|ed)?|timeouts?|ooms?|nan|inf|killed|lost|missing|invalid)(?: \w+)?\s*[:=]?\s*0\b(?![.x])"
    r"|\berror rate\b|\b(?:on_|max_)?(?:errors?|timeout\w*)\s*=\s*\w+|\bdefault\w*"
    r"|^[^\w\n]*(?:\[[^\]\n]{0,80}\][^\w\n]{0,20})?INFO\b.*$",
    re.I | re.M,
)
_SAMPLE = re.compile(  # from here on a line shows a row, or what a model wrote: whatever it tells of happened to nobody here
    r"\{\s*['\"](?:text|prompt|completion|messages|conversations?|instruction|input|question|query|answer|response|chosen|rejected|content"
    r"|role|generated(?:_text)?|prediction)['\"]\s*:(?!.*['\"](?:level(?:name)?|severity|record)['\"]\s*:).*"
    r"|###? (?:Question|Instruction|Input|Prompt|Response|Answer)\b.*|<\|(?:im_start|start_header_id|user|assistant)\|>.*|<start_of_turn>.*"
    r"|^\W*(?:generat(?:ed|ion)|prediction|completion|prompt|question|answer|response|instruction|user|assistant)(?: *#?\d+)? ?:\s"
    r"(?!(?<=response:\s)(?:(?:HTTP\S* |<Response \[|status\w*\W{1,3})?[45]\d\d\b|\{['\"]error['\"])).*",  # but for a server's refusal
    re.I,
)


def without_passing(lines: Sequence[Line]) -> tuple[list[Line], list[Line]]:
    """Return the lines that may be evidence, and of those the ones that are so whatever stands beside them."""
    cut = ((line, *_SAMPLE.subn("", line.text)) for line in lines)
    own_words = (replace(line, text=text.rstrip()) if found else line for line, text, found in cut)
    serious = [line for line in own_words if line.text and not _NEVER.search(line.text)]
    return serious, [line for line in serious if not _ALONE.search(line.text)]


def of_weight(text: str) -> str:
    """Strip counts of nothing and plain information from a text."""
    return _NOUGHT.sub("", text)
