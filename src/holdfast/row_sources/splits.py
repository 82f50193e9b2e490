"""Which files of a data set are a split: as its card says, else as their names do. Knows names alone, fetches nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any, Literal

import yaml

from holdfast.base.errors import USAGE, Stop
from holdfast.base.units import counted
from holdfast.row_sources.names import PACKED, ROWS, HubRows, suffix_of

_ABOUT = {"dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json", "package.json", "config.json"}
_SHARD = re.compile(r"(?P<split>[\w.-]+?)-\d{5}-of-\d{5}\b")
_WORDS = {
    "train": "train|training",
    "validation": "validation|valid|dev|val|validierung",
    "test": "test|testing|eval|evaluation|evaluierung|(?:held|hold)[-_ ]?out",
}
_CALLED = {split: rf"(?:{words})(?:s?(?:sets?|data|daten|split))?" for split, words in _WORDS.items()}  # testset, Trainingsdaten
_IN_NAME = re.compile("|".join(rf"(?<![a-zà-öø-ÿ])(?P<{split}>{called})(?![a-zà-öø-ÿ])" for split, called in _CALLED.items()))
_TO_LEARN, _TO_JUDGE = ("train",), ("validation", "valid", "dev", "val", "test")
_NO_SPLIT = ("data", "part")  # what writers call shards: save_to_disk, Spark
_OF_SETS = ("dataset_info.json", "dataset_dict.json", "state.json")
Splits = dict[str, list[str]]
Use = Literal["learned", "judging", "all"]  # what rows are for


def files_of(rows: HubRows, files: list[str], card: str, held_out: bool) -> tuple[str, list[str], list[str], list[str]]:
    """Return (the chosen split, its files, the other splits, its files of other forms, which are not read). held_out: rows that judge.

    Raises Stop(2), naming the splits there are.
    """
    if rows.path:
        found = matching(files, rows.path)
        if not found:
            raise Stop(USAGE, f"{rows.name} has no file {rows.path}", f"it has {shown_some(files)}")
        if not rows.split or len(found) == 1:
            read, others = _one_format(found)
            return "", read, [], others
        subset, splits = "", _by_names([file for file in found if _holds_rows(file)])
    else:
        subset, splits = _subset(rows, [file for file in files if _holds_rows(file)], _configs(card))
    if not splits:
        raise Stop(USAGE, *_without_rows(rows, files))
    wanted = (rows.split,) if rows.split else _TO_JUDGE if held_out else _TO_LEARN
    chosen = next((split for name in wanted for split in splits if split == name or split == split_called(name)), None)
    if chosen is None and not rows.split and not held_out and len(splits) == 1:
        chosen = next(iter(splits))
    if chosen is None:
        told = ", ".join(f"{split} ({len(inside)} file{'s' if len(inside) > 1 else ''})" for split, inside in splits.items())
        of = f" of subset {subset}" if subset else ""
        asked = f"split {rows.split}" if rows.split else f"split named {', '.join(wanted)}"
        key = f"{rows.name}?split={next(iter(splits))}" if held_out else f"data.split: {next(iter(splits))}"
        raise Stop(USAGE, f"{rows.name} has no {asked}{of}; it has {told}", f"for example {key}")
    read, others = _one_format(splits[chosen])
    return chosen, read, [split for split in splits if split != chosen], others


def _subset(rows: HubRows, usable: list[str], configs: list[dict[str, Any]]) -> tuple[str, Splits]:
    """Return (name, splits) of the subset that is asked for, or of the default one."""
    names = [str(config.get("config_name", "default")) for config in configs]
    if not names:
        folders = {part for file in usable for part in PurePosixPath(file).parts[:-1]}
        if rows.subset and rows.subset not in folders:
            raise Stop(USAGE, f"{rows.name} has no subset {rows.subset}: its card names none", "leave data.subset out")
        inside = [file for file in usable if not rows.subset or rows.subset in PurePosixPath(file).parts[:-1]]
        return rows.subset or "", _by_names(inside)
    default = [name for name, config in zip(names, configs, strict=True) if config.get("default") is True]
    default = default or [name for name in names if name == "default"] or (names if len(names) == 1 else [])
    wanted = rows.subset or (default[0] if default else None)
    if wanted not in names:
        told = f"{rows.name} has no subset {wanted}" if wanted else f"{rows.name} has several subsets, and none is the default"
        raise Stop(USAGE, f"{told}; it has {shown_some(names, 20)}", f"data.subset: {names[0]}")
    config = configs[names.index(wanted)]
    return (wanted if len(names) > 1 else ""), _by_card(config, usable)


def _by_card(config: dict[str, Any], usable: list[str]) -> Splits:
    """Return the splits by `configs` of a card: a pattern, several, or one for each split."""
    given, folder = config.get("data_files"), str(config.get("data_dir") or "").strip("./")
    inside = [file for file in usable if not folder or file.startswith(f"{folder}/")]
    if given is None:
        return _by_names(inside)
    entries = given if isinstance(given, list) else [given]
    splits: Splits = {}
    for entry in entries:
        split, patterns = (entry.get("split", "train"), entry.get("path")) if isinstance(entry, dict) else (None, entry)
        for pattern in patterns if isinstance(patterns, list) else [patterns]:
            found = matching(usable, f"{folder}/{pattern}".strip("/")) or matching(usable, str(pattern))
            for name, files in ({str(split): found} if split is not None else _by_names(found)).items():
                splits[name] = [*splits.get(name, []), *(file for file in files if file not in splits.get(name, []))]
    return {name: files for name, files in splits.items() if files}


def _by_names(files: list[str]) -> Splits:
    """Group files into splits by the names of files and folders; those that no name tells of are "train" where the others all judge."""
    splits: Splits = {}
    for file in sorted(files):
        splits.setdefault(_named(file), []).append(file)
    rest = splits.pop("", [])
    return {"train": rest, **splits} if rest and all(map(judges, splits)) else splits


def _named(file: str) -> str:
    """Return the split that a path names: in its shards' name, in the file's, in a folder's; "" for none."""
    *folders, name = PurePosixPath(file).parts
    shard = _SHARD.match(name)
    if shard and shard["split"] not in _NO_SPLIT:
        return split_called(shard["split"])
    for part in (name, *reversed(folders)):
        if split := _last_in(part):
            return split
    return ""


def _last_in(name: str) -> str:
    """Return the split of the last word for one in a name, which is the noun: test for training-test; "" for none."""
    return next((found.lastgroup or "" for found in reversed([*_IN_NAME.finditer(name.lower())])), "")


def split_called(name: str) -> str:
    """Return the split that a name means, such as test for eval; the name itself where it means none."""
    return next((split for split, called in _CALLED.items() if re.fullmatch(called, name.lower())), name)


def judging(files: list[str]) -> Splits:
    """Return by split the files that judge, where others beside them do not; empty where none does, or all do. files: paths in a folder."""
    found: Splits = {}
    for file in files:
        name = _named(file)
        split = _last_in(name) or name.lower()
        found.setdefault(split if split in _TO_JUDGE else "", []).append(file)
    return {split: inside for split, inside in found.items() if split} if "" in found else {}


def of_use(asked: str, files: list[str], folder: str, use: Use, tell: Callable[[str], None]) -> list[str]:
    """Return those of the files in a folder, or of a pattern, that are of use; tell which are not, and which may hold the same rows."""
    places = {file: PurePosixPath(file).relative_to(folder).as_posix() for file in files}
    splits = judging([*places.values()]) if use != "all" else {}
    of_judges = [file for inside in splits.values() for file in files if places[file] in inside]
    learned = [file for file in files if file not in of_judges]
    left = of_judges if of_judges and use == "judging" else learned
    if of_judges and use == "judging":
        tell(f"{asked}: {counted(len(learned), 'file')} of other splits are left out; rows that are learned judge nothing")
    elif of_judges:
        told = ", ".join(f"{split} ({counted(len(inside), 'file')})" for split, inside in splits.items())
        protocol, far, _ = asked.partition("://") if "://" in asked else ("", "", "")
        whole = far and not any(sign in asked for sign in "*?[")
        names = [f"{asked.rstrip('/')}/{places[file]}" if whole else f"{protocol}{far}{file}" for file in of_judges[:3]]
        more = " ..." if of_judges[3:] else ""
        tell(f"{asked}: left out {told}: a split that judges is not trained; for data.held_out_files: {' '.join(names)}{more}")
    named: dict[PurePosixPath, list[str]] = {}
    for file in map(PurePosixPath, left):
        end = suffix_of(file.name)
        named.setdefault(file.with_name(file.name[: file.name.lower().rfind(end)] or file.name), []).append(file.name)
    for name, forms in named.items():
        if len(forms) > 1:
            told = f"{asked}: {name.name} is there as {' and '.join(forms)}; where these hold the same rows,"
            tell(f"{told} each row is read {len(forms)} times: name one of them")
    return left


def without_facts(files: list[str]) -> list[str]:
    """Return the files of a folder without those in which `save_to_disk` told of the data set beside it."""
    told = {PurePosixPath(file).parent for file in files if PurePosixPath(file).name in _OF_SETS[:2]}
    return [file for file in files if not (PurePosixPath(file).name in _OF_SETS and PurePosixPath(file).parent in told)]


def judges(name: str) -> bool:
    """Return whether a name is that of a split that judges, which is not learned."""
    return split_called(name) in _TO_JUDGE


def _one_format(files: list[str]) -> tuple[list[str], list[str]]:
    """Return (files of the most frequent form, the others): a data set that offers the same rows in two forms is read once."""
    kinds = Counter(suffix_of(file) for file in files if suffix_of(file) != ".txt") or Counter(suffix_of(file) for file in files)
    most = max(kinds, key=lambda kind: (kinds[kind], kind == ".parquet"), default="")
    return [file for file in files if suffix_of(file) == most], [file for file in files if suffix_of(file) != most]


def _holds_rows(file: str) -> bool:
    parts = PurePosixPath(file).parts
    return suffix_of(file) in ROWS and parts[-1] not in _ABOUT and not any(part.startswith(".") for part in parts)


def _configs(card: str) -> list[dict[str, Any]]:
    """Read `configs` of the front matter of a data set's README.md."""
    try:
        front = yaml.safe_load(card.split("---")[1]) if card.startswith("---") else None
    except (IndexError, yaml.YAMLError):
        return []
    found = front.get("configs") if isinstance(front, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def matching(files: list[str], pattern: str) -> list[str]:
    """Return those of `files` that match a pattern: ** any folders, * and ? within one, a folder all in it."""
    signs = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    made = "".join(signs.get(part, re.escape(part)) for part in _TOKENS.findall(pattern))
    whole = re.compile(f"{made}(?:/.*)?" if made else ".*")
    return sorted(file for file in files if whole.fullmatch(file))


_TOKENS = re.compile(r"\*\*/|\*\*|\*|\?|[^*?]+")


def _without_rows(rows: HubRows, files: list[str]) -> tuple[str, str]:
    script = next((file for file in files if file == f"{rows.name.partition('/')[2]}.py"), None)
    other = f"{rows.name}@refs/convert/parquet has what the hub made of it, if it did"
    if script:
        return f"{rows.name} gives its rows by a script ({script}), which is not run here", other
    kinds = Counter(suffix_of(file) or "(no ending)" for file in files if not file.startswith("."))
    told = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(4)) or "no file"
    return f"{rows.name} holds no files of rows ({', '.join((*ROWS[:3], *PACKED[:1]))} and others are read): it has {told}", other


def shown_some(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
