"""Whether a policy's files can do what they are for, asked before anything is trained: a gate with nothing behind it would be none."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from holdfast.base.errors import USAGE, Stop
from holdfast.base.files import write_bytes
from holdfast.base_model.folder import read_model
from holdfast.data.files.raw_row import json_line
from holdfast.export.samples import of_file, rules_of_rows
from holdfast.learn.gate import general_lines, held_rows, people_at_gate
from holdfast.learn.judge_rows import codec_for, round_config
from holdfast.learn.policy import Policy
from holdfast.verify.compare import MOST_TOKENS
from holdfast.verify.expectations import read_prompts
from holdfast.verify.stats import FEWEST


def refuse_unusable(policy: Policy) -> None:
    """Raise Stop(2) where the config, the gate's rows or prompts, or the general rows could not be used by a round."""
    held = held_rows(policy)
    if policy.round.most and policy.round.most < 2 * FEWEST and not policy.replay.carried:
        text = f"no round could ever pass: of round.most {policy.round.most} rows at most half are held out, and {FEWEST} tell something"
        raise Stop(USAGE, text, f"set round.most to {2 * FEWEST} or more, or replay.carried to true: evidence then adds up over rounds")
    config, _ = round_config(policy, Path("train.jsonl"))
    if policy.gate.prompts:
        read_prompts(Path(policy.gate.prompts))
    if policy.replay.general and policy.replay.general_rows and not any(map(str.strip, general_lines(policy.replay.general_rows))):
        raise Stop(USAGE, f"{policy.replay.general_rows} has no row", "give replay.general_rows general rows, or leave it out")
    model = read_model(config.model)
    with tempfile.TemporaryDirectory(prefix="holdfast-learn-", ignore_cleanup_errors=True) as work:
        file = Path(work, "gate.jsonl")
        write_bytes(file, b"".join(json_line(row) for _, row in held))
        try:
            longest = min(MOST_TOKENS, model.positions or MOST_TOKENS)
            rows = of_file(file, codec_for(config, model.folder), longest, rules_of_rows(config))
        except Stop as stop:
            raise Stop(
                stop.code, stop.message.replace(str(file), policy.gate.rows), f"why: holdfast data check {policy.gate.rows}"
            ) from None
    lines = [source.line - 1 for source in rows.sources]
    if policy.gate.certain:
        people = people_at_gate(policy, held)
        clusters = rows.of_people([people[line] for line in lines]).clusters.tolist()
        apart = Counter(name for name, _ in {(held[line][0], cluster) for line, cluster in zip(lines, clusters, strict=True)})
        if one := sorted(name for name, count in apart.items() if count < 2):
            text = f"no round could ever pass gate.certain: all rows of {', '.join(one)} in {policy.gate.rows} are of one prompt or person"
            raise Stop(USAGE, text, "give rows of several, or gate.by_person: false where each row counts")
    there = Counter(name for name, _ in held)
    read = Counter(held[line][0] for line in lines)
    if few := [f"{name} has {read[name]} of {count}" for name, count in there.items() if read[name] < FEWEST]:
        text = f"rows of {policy.gate.rows} that can be used: {', '.join(few)}; fewer than {FEWEST} give no interval"
        raise Stop(USAGE, text, f"why: holdfast data check {policy.gate.rows}")
