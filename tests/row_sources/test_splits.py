"""Which files of a data set are a split: by cards and names as data sets on the hub have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.base.errors import Stop
from holdfast.data.files.paths import Use, expand
from holdfast.row_sources.names import HubRows, hub_rows, is_elsewhere, with_asked
from holdfast.row_sources.splits import files_of, judging, matching

SHARDS = [f"data/{split}-{at:05}-of-00002.parquet" for split in ("test_sft", "train_gen", "train_sft") for at in range(2)]
LANGUAGES = """---
configs:
- config_name: en
  data_files:
  - split: train
    path: en/train-*
  - split: test
    path: [en/test.jsonl]
  default: true
- config_name: fr
  data_dir: fr
---
"""
OF_LANGUAGES = ["en/train-1.jsonl", "en/train-2.jsonl", "en/test.jsonl", "fr/train.jsonl", "fr/dev.jsonl"]


@pytest.mark.parametrize(
    ("files", "card", "asked", "held_out", "found"),
    [
        (["train.jsonl", "test.jsonl"], "", {}, False, ["train.jsonl"]),
        (["train.jsonl", "test.jsonl"], "", {}, True, ["test.jsonl"]),
        (["train.jsonl", "dev.jsonl", "test.jsonl"], "", {}, True, ["dev.jsonl"]),
        (["train.jsonl", "dev.jsonl"], "", {"split": "validation"}, False, ["dev.jsonl"]),
        (["train.jsonl", "dev.jsonl"], "", {"split": "dev"}, False, ["dev.jsonl"]),
        (["databricks-dolly-15k.jsonl"], "", {}, False, ["databricks-dolly-15k.jsonl"]),
        (["a.csv", "b.csv", "dataset_infos.json", ".gitattributes", "README.md"], "", {}, False, ["a.csv", "b.csv"]),
        (["constrained.jsonl", "test.jsonl"], "", {}, True, ["test.jsonl"]),
        (["train/a.parquet", "train/b.parquet", "test/a.parquet"], "", {}, False, ["train/a.parquet", "train/b.parquet"]),
        (["train.parquet", "train.csv"], "", {}, False, ["train.parquet"]),
        (["rows.jsonl", "test.jsonl"], "", {}, False, ["rows.jsonl"]),
        (["rows.jsonl", "test.jsonl"], "", {}, True, ["test.jsonl"]),
        (["rows.jsonl", "train.jsonl", "test.jsonl"], "", {}, False, ["train.jsonl"]),
        (["train.jsonl.gz", "valid.jsonl.gz"], "", {}, True, ["valid.jsonl.gz"]),
        (["Trainingsdaten.csv", "Testdaten.csv"], "", {}, False, ["Trainingsdaten.csv"]),
        (["eval_train.jsonl", "train_eval.jsonl"], "", {}, True, ["train_eval.jsonl"]),
        (SHARDS, "", {"split": "train_sft"}, False, SHARDS[4:]),
        (SHARDS, "", {"split": "test_sft"}, True, SHARDS[:2]),
        (OF_LANGUAGES, LANGUAGES, {}, False, OF_LANGUAGES[:2]),
        (OF_LANGUAGES, LANGUAGES, {}, True, ["en/test.jsonl"]),
        (OF_LANGUAGES, LANGUAGES, {"subset": "fr"}, True, ["fr/dev.jsonl"]),
        (OF_LANGUAGES, "---\nconfigs:\n- config_name: default\n  data_files: fr/*.jsonl\n---\n", {}, False, ["fr/train.jsonl"]),
        (["default/train/0000.parquet", "default/test/0000.parquet"], "", {"subset": "default"}, False, ["default/train/0000.parquet"]),
        (["x/0000.parquet", "y/0000.parquet"], "", {"path": "x/*"}, False, ["x/0000.parquet"]),
        (["one/0.parquet", "one/1.parquet"], "---\nbroken: [\n---", {}, False, ["one/0.parquet", "one/1.parquet"]),
    ],
)
def test_the_files_of_a_split(files: list[str], card: str, asked: dict[str, str], held_out: bool, found: list[str]) -> None:
    assert files_of(HubRows("me/rows", **asked), files, card, held_out)[1] == found


def test_files_of_another_form_are_told() -> None:
    """The same rows twice, or half of them: nobody can know, so it is said."""
    files = ["train-1.parquet", "train-2.parquet", "train-3.jsonl", "test.jsonl"]
    assert files_of(HubRows("me/rows"), files, "", held_out=False) == ("train", files[:2], ["test"], ["train-3.jsonl"])
    assert files_of(HubRows("me/rows", path="train*"), files, "", held_out=False) == ("", files[:2], [], ["train-3.jsonl"])


@pytest.mark.parametrize(
    ("files", "card", "asked", "held_out", "message"),
    [
        (SHARDS, "", {}, False, r"no split named train; it has test_sft \(2 files\), train_gen"),
        (["train.jsonl"], "", {}, True, "no split named validation, valid, dev, val, test; it has train"),
        (OF_LANGUAGES, LANGUAGES, {"subset": "de"}, False, "no subset de; it has en, fr"),
        (OF_LANGUAGES, LANGUAGES.replace("  default: true\n", ""), {}, False, "several subsets, and none is the default; it has en, fr"),
        (["a.jsonl"], "", {"path": "b.jsonl"}, False, "no file b.jsonl"),
    ],
)
def test_what_there_is_is_named(files: list[str], card: str, asked: dict[str, str], held_out: bool, message: str) -> None:
    with pytest.raises(Stop, match=message) as stop:
        files_of(HubRows("me/rows", **asked), files, card, held_out)
    assert stop.value.code == 2 and stop.value.hint


def test_patterns() -> None:
    files = ["a.csv", "b/a.csv", "b/c/a.csv", "b/x.txt"]
    assert matching(files, "*.csv") == ["a.csv"]
    assert matching(files, "**/*.csv") == files[:3]
    assert matching(files, "b") == files[1:] and matching(files, "b/?.txt") == ["b/x.txt"]


@pytest.mark.parametrize(
    ("name", "is_name"),
    [
        ("openai/gsm8k", True),
        ("HuggingFaceH4/ultrachat_200k", True),
        ("me/rows@v1.0", True),
        ("me/rows@refs/convert/parquet", True),
        ("s3://bucket/rows.jsonl", True),
        ("rows.jsonl", False),
        ("data/rows.jsonl", False),
        ("data/rows.jsonl.gz", False),
        ("./data/rows", False),
        ("a/b/c", False),
        ("data/*", False),
        ("/data/rows", False),
        ("~/rows", False),
    ],
)
def test_names_that_are_no_paths(name: str, is_name: bool) -> None:
    assert is_elsewhere(name) == is_name


def test_a_name_holds_all_that_is_asked_for() -> None:
    assert with_asked("me/rows", "fr", "test", "v1") == "me/rows@v1?subset=fr&split=test"
    assert with_asked("me/rows@v2?split=dev", "fr", "test", "v1") == "me/rows@v2?subset=fr&split=dev"
    assert with_asked("s3://b/rows.jsonl", None, "test", None) == "s3://b/rows.jsonl"
    for name in ("me/rows@refs/convert/parquet?subset=fr", "hf://datasets/me/rows@v1/data/a.jsonl?split=test"):
        assert str(hub_rows(name)) == name


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["train/data-00000-of-00001.arrow", "test/data-00000-of-00001.arrow"], {"test": ["test/data-00000-of-00001.arrow"]}),
        (["train_sft/data-00000-of-00001.arrow", "test_sft/data-00000-of-00001.arrow"], {"test": ["test_sft/data-00000-of-00001.arrow"]}),
        (["rows.jsonl", "rows_eval.jsonl", "dev.jsonl"], {"test": ["rows_eval.jsonl"], "validation": ["dev.jsonl"]}),
        (["train-00000-of-00001.parquet", "test_sft-00000-of-00001.parquet"], {"test": ["test_sft-00000-of-00001.parquet"]}),
        (["latest.jsonl", "contest.jsonl", "devices.jsonl"], {}),
        (["test.jsonl", "validation.jsonl"], {}),  # nothing else is there to be learned
        (["train/part-00000-of-00001.parquet", "test/part-00000-of-00001.parquet"], {"test": ["test/part-00000-of-00001.parquet"]}),
        (["trainset.jsonl", "testset.jsonl", "valset.jsonl"], {"test": ["testset.jsonl"], "validation": ["valset.jsonl"]}),
        (["Trainingsdaten.csv", "Testdaten.csv", "Validierung.csv"], {"test": ["Testdaten.csv"], "validation": ["Validierung.csv"]}),
        (["training-train.jsonl", "training-test.jsonl"], {"test": ["training-test.jsonl"]}),  # the last word is the noun
        (["rows.jsonl", "held_out.jsonl", "holdout/a.jsonl"], {"test": ["held_out.jsonl", "holdout/a.jsonl"]}),
        (["constraints/a.jsonl", "evaluate_me.csv", "testament.txt", "élevé.txt", "valuation.csv", "traindata.csv"], {}),
    ],
)
def test_what_judges_among_files_of_a_folder(files: list[str], found: dict[str, list[str]]) -> None:
    assert judging(files) == found


@pytest.mark.parametrize(
    ("asked", "use", "found", "said"),
    [
        ("", "learned", ["train/data-00000-of-00001.arrow"], "left out test (1 file), validation (1 file)"),
        ("", "judging", ["test/data-00000-of-00001.arrow", "validation/data-00000-of-00001.arrow"], "1 file of other splits"),
        ("", "all", [f"{name}/data-00000-of-00001.arrow" for name in ("test", "train", "validation")], ""),
        ("*/*.arrow", "learned", ["train/data-00000-of-00001.arrow"], "for data.held_out_files: "),
        ("test", "learned", ["test/data-00000-of-00001.arrow"], ""),  # asked for by its name
    ],
)
def test_a_folder_of_several_splits(
    asked: str, use: Use, found: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As datasets.DatasetDict.save_to_disk writes one."""
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test", "validation"]}')
    for split in ("train", "test", "validation"):
        (tmp_path / split).mkdir()
        for name in ("data-00000-of-00001.arrow", "dataset_info.json", "state.json"):
            (tmp_path / split / name).write_text("{}")
    assert expand([str(tmp_path / asked)], use) == [str(tmp_path / file) for file in found]
    told = capsys.readouterr().err
    assert said in told if said else not told
