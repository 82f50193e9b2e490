"""A task of lm-eval on a local file: short continuations, of which one is right."""

from __future__ import annotations

import json
from pathlib import Path

_TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
metadata: {{version: 1.0}}
"""
_WORDS = ("ls", "cp", "mv", "rm", "cat", "tar", "grep", "sed")


def make_suite(folder: Path, name: str = "local_words", questions: int = 12) -> Path:
    """A folder of one task."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "question": f"Q{number}: the command is",
            "choices": [f" {_WORDS[number % 8]}", f" {_WORDS[(number + 3) % 8]}"],
            "answer": number % 2,
        }
        for number in range(questions)
    ]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / f"{name}.yaml").write_text(_TASK.format(name=name, file=folder / f"{name}.jsonl"))
    return folder
