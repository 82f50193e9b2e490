"""A run folder that is gone after its command is not named to anybody."""

from __future__ import annotations

from pathlib import Path

from holdfast.config.config import Config
from holdfast.run.folder import RunFolder
from holdfast.supervision.preparation.throwaway import throwaway, where_rejects_are


def test_rejects_of_a_run_that_will_be_gone_are_shown_by_a_command(tmp_path: Path) -> None:
    config = Config.model_validate(
        {"model": "tiny", "data": {"files": ["my rows.csv"], "fields": {"answer": "Reply"}, "too_long": "reject"}}
    )
    with throwaway() as place:
        told = where_rejects_are(RunFolder(place), config)
    assert told == f"holdfast data check 'my rows.csv' --field answer=Reply --too-long reject --max-tokens {config.train.max_tokens}"
    assert where_rejects_are(RunFolder(tmp_path / "run"), config).endswith("run/rejects.jsonl")


def test_a_table_is_looked_at_with_its_config() -> None:
    config = Config.model_validate({"task": "tabular", "data": {"files": ["bars.csv"]}, "table": {"target": "up"}})
    with throwaway() as place:
        assert where_rejects_are(RunFolder(place), config) == "holdfast data check --config CONFIG"
