"""What of the rows that came a round keeps, and what it says of the others."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from conftest import make_rows, write_rows
from holdfast.base.errors import Stop
from holdfast.base.files import read_lines, write_bytes
from holdfast.cli.main import main
from holdfast.data.collect.outfile import row_key
from holdfast.data.collect.record import Record
from holdfast.data.files.raw_row import json_line
from holdfast.data.tokens.codec import Codec
from holdfast.data.tokens.given_template import codec_with
from holdfast.export import registry
from holdfast.learn import judge_rows as judge_rows_module
from holdfast.learn.forget import _keys, _remove, forget, price
from holdfast.learn.judge_rows import judge_rows
from holdfast.learn.learn import Learner, _held_out
from holdfast.learn.policy import Policy, load_policy
from holdfast.learn.rounds import Round, disliked_by, learned_by, rounds_of, withdraw_person
from holdfast.learn.sources import _judged, arrived, without_unknown_ratings
from holdfast.learn.usable import refuse_unusable
from support.redis_server import needs_server, running_server

Row = dict[str, Any]


@pytest.fixture
def policy_of(config_of: Callable[..., Path], tmp_path: Path) -> Callable[..., Policy]:
    """A policy over inbox/*.jsonl with the small model; keyword arguments replace keys."""

    def make(**keys: Any) -> Policy:
        config_of("base")
        held = [row | {"topic": "join"} for row in make_rows(60)[50:]]
        write_rows(tmp_path / "held.jsonl", held)
        (tmp_path / "inbox").mkdir(exist_ok=True)
        tree: Row = {"name": "helper", "config": "base.yaml", "sources": [{"files": "inbox/*.jsonl"}], "round": {"rows": 20}}
        tree |= {"gate": {"rows": "held.jsonl", "domains": "topic"}, "folder": str(tmp_path / "rounds-here")} | keys
        (tmp_path / "policy.yaml").write_text(json.dumps(tree))
        return load_policy(tmp_path / "policy.yaml")

    return make


def reasons(policy: Policy, rows: list[Row], seen: set[int] | None = None) -> list[str]:
    write_rows(Path(policy.folder or "").parent / "inbox" / "rows.jsonl", rows)
    judged = judge_rows(policy, list(arrived(policy, frozenset())), seen or set())
    assert len(judged.reasons) == len(judged.kept) + sum(judged.by_reason.values()) == len(rows)
    return judged.reasons


def test_each_row_is_kept_or_has_a_reason(policy_of: Callable[..., Policy]) -> None:
    *good, bad = make_rows(5)
    rows = [*good, good[0], {"what": "is this"}, make_rows(60)[55], good[1] | {"consent": False}, bad | {"rating": "down"}]
    assert reasons(policy_of(), rows) == ["", "", "", "", "duplicate", "missing_field", "in_held_out", "no_consent", "rated_bad"]


def test_rows_of_one_conversation_or_prompt_are_held_out_together(policy_of: Callable[..., Policy], tmp_path: Path) -> None:
    """Each of ten conversations comes turn by turn, with what was said before: what is held out of it would be known by heart."""
    turns = [(role, turn) for turn in "abc" for role in ("user", "assistant")]
    said = [[{"role": role, "content": f"{role} says {turn} of {talk}"} for role, turn in turns] for talk in range(10)]
    rows: list[Row] = [{"messages": each[:end]} for each in said for end in (2, 4, 6)]
    policy = policy_of()
    write_rows(tmp_path / "inbox" / "rows.jsonl", rows)
    judged = judge_rows(policy, list(arrived(policy, frozenset())), set())
    held = _held_out(judged.kept, judged.together, 0.3)
    talks = [{row["messages"][0]["content"] for number, row in judged.kept.items() if (number in held) is side} for side in (True, False)]
    assert len(judged.kept) == 20 and len(held) == 8 and not talks[0] & talks[1]


def test_a_conversation_that_goes_on_in_a_later_round_is_never_on_both_sides(
    policy_of: Callable[..., Policy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_MODELS", str(tmp_path / "models.jsonl"))
    learner = Learner(policy_of(round={"rows": 12}, replay={"old": 0.3, "general": 0.0}), print)
    words = [row["output"] for row in make_rows(24)]
    said = [[{"role": role, "content": f"{word} {role} {turn}"} for turn in "ab" for role in ("user", "assistant")] for word in words]
    sides = []
    for number, (talks, end) in enumerate(((said[:12], 2), (said[6:18], 4))):
        write_rows(tmp_path / "inbox" / f"{number}.jsonl", [{"messages": each[:end]} for each in talks])
        one, _ = learner.next_round()
        assert one is not None
        facts = one.done("judged", learner._judge(one))
        sides.append([{row["messages"][0]["content"] for row in read_lines(file)} for file in (one.train, one.new)])
        ended(one, carry=True)
    assert facts["carried"] == 1 and facts["rows"]["replayed"]
    assert not sides[1][0] & sides[1][1]


def test_the_tokenizer_is_loaded_once_for_all_that_a_round_judges(
    policy_of: Callable[..., Policy], assets: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_MODELS", str(tmp_path / "models.jsonl"))
    shutil.copytree(assets.model, tmp_path / "model")
    loads: list[Path] = []

    def load(folder: Path, source: str | None) -> Codec:
        loads.append(folder)
        return codec_with(folder, source)

    monkeypatch.setattr(judge_rows_module, "codec_with", load)
    learner = Learner(policy_of(round={"rows": 12}), print)
    tree = yaml.safe_load((tmp_path / "base.yaml").read_text())
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(tree | {"model": str(tmp_path / "model")}))
    refuse_unusable(learner.policy)
    for number in range(2):
        write_rows(tmp_path / "inbox" / f"{number}.jsonl", make_rows(40)[20 * number : 20 * number + 20])
        one, _ = learner.next_round()
        assert one is not None
        one.done("judged", learner._judge(one))
        ended(one, carry=True)
    assert loads == [tmp_path / "model"]
    settings = tmp_path / "model" / "tokenizer_config.json"
    settings.write_text(settings.read_text() + " ")
    refuse_unusable(learner.policy)
    assert len(loads) == 2, "files that have changed are read again"


def test_a_source_that_tells_everything_again_brings_nothing_new(policy_of: Callable[..., Policy]) -> None:
    rows = make_rows(5)
    seen = {row_key(row) for row in rows[:3]}
    assert reasons(policy_of(), rows, seen) == ["seen_before"] * 3 + ["", ""]


def test_a_row_that_was_mended_is_known_when_it_comes_again(policy_of: Callable[..., Policy], tmp_path: Path) -> None:
    """A log that is turned over is told again from its first line: what a round keeps is not the text that stands there."""
    policy, rows = policy_of(), make_rows(3)
    rows[1]["output"] += " caf\u00c3\u00a9"
    write_rows(tmp_path / "inbox" / "rows.jsonl", rows)
    first = judge_rows(policy, list(arrived(policy, frozenset())), set())
    assert first.kept[1]["output"].endswith(" caf\u00e9")
    again = judge_rows(policy, list(arrived(policy, frozenset())), {row_key(row) for row in first.kept.values()})
    assert (again.reasons, again.kept, again.flood.total()) == (["seen_before"] * 3, {}, 0)


def test_one_person_cannot_fill_a_round(policy_of: Callable[..., Policy]) -> None:
    policy = policy_of(keep={"per_person": 0.25})
    rows = make_rows(30)
    assert reasons(policy, [row | {"person": "ann"} for row in rows]).count("one_person") == 0  # theirs alone: it is their helper
    mixed = [row | {"person": "ann" if number < 25 else "ben"} for number, row in enumerate(rows)]
    assert reasons(policy, mixed) == [""] * 5 + ["one_person"] * 20 + [""] * 5


def test_three_people_who_cannot_fill_a_round_are_told_what_stands_in_its_way(
    policy_of: Callable[..., Policy], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each may have a quarter of 20 rows: it waited for ever, and said that there were 15 of 20."""
    policy_of()
    rows = [row | {"person": ("ann", "ben", "eve")[number % 3]} for number, row in enumerate(make_rows(30))]
    write_rows(tmp_path / "inbox" / "rows.jsonl", rows)
    assert main(["learn", str(tmp_path / "policy.yaml")]) == 0
    assert "15 new rows of 20 that begin one (15 rejected); more rows of some people than keep.per_person allows" in capsys.readouterr().out
    assert not rounds_of(tmp_path / "rounds-here")


def test_a_thousand_votes_of_one_person_cost_the_others_no_row(
    policy_of: Callable[..., Policy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_MODELS", str(tmp_path / "models.jsonl"))
    told = {"chosen_model": "tuned", "voted": "a"}
    votes = [row | {"person": "ann"} | told for row in make_rows(1025)[:1000]]
    votes = [row | {"instruction": f"{row['instruction']} of {at}"} for at, row in enumerate(votes)]
    others = [row | {"person": f"ben {at % 7}"} | told for at, row in enumerate(make_rows(1025)[1000:])]
    learner = Learner(policy_of(round={"rows": 20}), print)
    write_rows(tmp_path / "inbox" / "votes.jsonl", [*votes, *others])
    one, _ = learner.next_round()
    assert one is not None
    facts = learner._judge(one)
    assert (facts["refused"], facts["by_reason"]["one_person"]) == (None, 995)
    kept = [fate["person"] for fate in read_lines(one.fates) if fate["fate"] != "rejected"]
    assert len(kept) == 30 and kept.count("ann") == 5


def test_what_a_round_is_refused_for_is_what_most_of_its_bad_rows_are(
    policy_of: Callable[..., Policy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of fifteen answers people say that they are bad; the many that one person gave beyond their share are none of those."""
    monkeypatch.setenv("HOLDFAST_MODELS", str(tmp_path / "models.jsonl"))
    rows = [row | {"person": "ann" if number < 40 else "ben"} for number, row in enumerate(make_rows(42))]
    rows += [row | {"person": "eve", "rating": "down"} for row in make_rows(80)[65:]]
    learner = Learner(policy_of(round={"rows": 10}), print)
    write_rows(tmp_path / "inbox" / "rows.jsonl", rows)
    one, _ = learner.next_round()
    assert one is not None
    facts = learner._judge(one)
    assert facts["by_reason"]["one_person"] == 37
    assert facts["refused"] == "15 of 20 rows are rejected, 15 of them as rated_bad: nothing was trained on the rest"


def test_a_phase_that_cannot_be_read_any_more_stops_the_rounds(policy_of: Callable[..., Policy], tmp_path: Path) -> None:
    """Taken for one that never was, a promotion would count as none: the next round would start from the base."""
    learner = Learner(policy_of(), print)
    one = Round(learner.folder / "rounds" / "0001")
    one.path.mkdir(parents=True)
    one.done("collected", {"rows": 1})
    ended(one, promoted=True, version=1)
    one.file("decided").write_bytes(b"\0" * 40)
    for ask in (learner.next_round, lambda: price(learner, "ann")):
        with pytest.raises(Stop, match=r"0001/5-decided.json is damaged"):
            ask()


@pytest.mark.parametrize(("most", "carried", "passes"), [(9, False, False), (10, False, True), (9, True, True)])
def test_rounds_of_too_few_rows_to_tell_anything_are_refused_before_the_first(
    policy_of: Callable[..., Policy], most: int, carried: bool, passes: bool
) -> None:
    policy = policy_of(round={"rows": 5, "most": most}, replay={"carried": carried})
    if passes:
        refuse_unusable(policy)
    else:
        with pytest.raises(Stop, match=r"no round could ever pass: of round\.most 9 rows") as stop:
            refuse_unusable(policy)
        assert stop.value.code == 2


@pytest.mark.parametrize(
    ("people", "keys", "begins"),
    [
        (["ann", "ben", "eve", "joe"], {}, False),
        (["ann", "ben", "eve", "joe", "sue"], {}, True),
        (["ann", "ben", "eve", ""], {}, True),  # each row of nobody's is another's
        (["ann"], {}, True),  # their own helper
        (["ann", "ben"], {"by_person": False}, True),
    ],
)
def test_rows_of_too_few_people_to_tell_anything_wait_and_nothing_is_trained(
    policy_of: Callable[..., Policy], tmp_path: Path, people: list[str], keys: Row, begins: bool
) -> None:
    policy = policy_of(round={"rows": 20}, gate={"rows": "held.jsonl"} | keys, keep={"per_person": 1.0})
    rows = [row | {"person": people[at % len(people)]} for at, row in enumerate(make_rows(20))]
    write_rows(tmp_path / "inbox" / "1.jsonl", rows)
    one, waiting = Learner(policy, print).next_round()
    assert (one is not None) is begins
    if not begins:
        assert waiting["rows"] == 20
        assert "4 in all, and the gate can tell nothing of fewer than 5; gate.by_person: false" in waiting["why"]
        write_rows(tmp_path / "inbox" / "2.jsonl", [make_rows(21)[20] | {"person": "sue"}])
        assert Learner(policy, print).next_round()[0], "nothing was lost: with a fifth person's the rows make a round"


@pytest.mark.parametrize(
    ("people", "by_person", "passes"),
    [
        (["ann"] * 5 + ["ben"] * 5, True, False),
        (["ann"] * 5 + ["ben"] * 5, False, True),
        (["ann"] * 10, True, True),
        (["ann", "ben"] * 5, True, True),
    ],
    ids=["each domain is one person's", "each row counts", "all are one person's", "each domain has two"],
)
def test_a_domain_of_one_person_alone_has_no_interval_for_a_gate_that_wants_one(
    policy_of: Callable[..., Policy], tmp_path: Path, people: list[str], by_person: bool, passes: bool
) -> None:
    gate = {"rows": "held.jsonl", "domains": "topic", "certain": True, "by_person": by_person}
    policy = policy_of(gate=gate)
    held = [row | {"topic": "ab"[at // 5], "person": people[at]} for at, row in enumerate(make_rows(60)[50:])]
    write_rows(tmp_path / "held.jsonl", held)
    if passes:
        refuse_unusable(policy)
    else:
        with pytest.raises(Stop, match=r"no round could ever pass gate\.certain: all rows of a, b in ") as stop:
            refuse_unusable(policy)
        assert stop.value.code == 2


def test_a_correction_stands_in_place_of_the_answer(policy_of: Callable[..., Policy], tmp_path: Path) -> None:
    policy = policy_of()
    row = {"prompt": "Two and two?", "completion": "five", "rating": {"value": "down", "correction": "four"}, "topic": "sums"}
    write_rows(tmp_path / "inbox" / "rows.jsonl", [row])
    [one] = arrived(policy, frozenset())
    assert one.row is not None
    assert (one.row["completion"], one.row["topic"]) == ("four", "sums")


@pytest.mark.parametrize(
    ("good", "said", "fates", "wait"),
    [
        (None, [1, 0, -1, "up", "down", None, True, "1"], ["", "bad", "bad", "", "bad", "", "", ""], []),
        (None, [1, 2, 5, "up", None], ["", ""], ["1", "2", "5"]),
        (None, [0.2, 0.9, 0], ["bad"], ["0.2", "0.9"]),
        (None, ["meh", "good"], [""], ["meh"]),
        (4, [1, 3.5, 4, "5", "up", "meh"], ["bad", "bad", "", "", ""], ["meh"]),
        (["4", "5"], [5.0, 4, 3.0, "5"], ["", "", "bad", ""], []),
        (["great"], ["great", " Great", "good", 5], ["", "", "bad", "bad"], []),
        (None, [{"score": 0, "comment": "no"}, {"thumbs": "up"}, {"rating": -1}, {}], ["bad", "", "bad", ""], []),
        (["great"], [{"comment": "wrong"}, {"feedback": "great"}], [""], ["{'comment': 'wrong'}"]),
    ],
)
def test_an_answer_is_learned_only_where_its_rating_says_that_it_is_good(
    policy_of: Callable[..., Policy], tmp_path: Path, good: object, said: list[object], fates: list[str], wait: list[str]
) -> None:
    policy = policy_of(keep={"good": good})
    write_rows(tmp_path / "inbox" / "rows.jsonl", [row | {"rating": one} for row, one in zip(make_rows(len(said)), said, strict=True)])
    came, waits = without_unknown_ratings(policy, list(arrived(policy, frozenset())))
    assert [one.reason.removeprefix("rated_") for one in came] == fates
    assert waits == {"rows": len(said) - len(fates), "ratings": wait}


def test_an_answer_that_another_entry_calls_bad_is_not_learned_the_later_rating_counts(
    policy_of: Callable[..., Policy],
) -> None:
    """A log has the answer first, and a line with its rating later; people change their minds."""
    logged, liked, regretted, mended, other = make_rows(5)
    rows = [logged, liked | {"rating": "down"}, liked | {"rating": "up"}, regretted | {"rating": "up"}, mended, other]
    rows += [logged | {"rating": 0}, regretted | {"rating": "down"}, mended | {"rating": {"value": 0, "correction": "thus"}}]
    assert reasons(policy_of(), rows) == ["rated_bad", "rated_bad", "", "rated_bad", "rated_bad", "", "rated_bad", "rated_bad", ""]


def test_an_answer_that_was_found_bad_in_an_earlier_round_is_not_learned_when_it_comes_again(
    policy_of: Callable[..., Policy], tmp_path: Path
) -> None:
    policy, [bad, good] = policy_of(), make_rows(2)
    write_rows(tmp_path / "inbox" / "rows.jsonl", [bad, good, bad | {"rating": "up"}])
    came = list(arrived(policy, frozenset()))
    assert judge_rows(policy, came, set(), frozenset({row_key(bad)})).reasons == ["rated_bad", "", ""]


def test_what_people_found_bad_since_is_not_replayed_and_told(policy_of: Callable[..., Policy], tmp_path: Path) -> None:
    """The first round has learned four rows; then people say of one that it is bad, and correct another."""
    old, said = make_rows(4), []
    learner = Learner(policy_of(replay={"old": 0.9, "general": 0.0}), said.append)
    first, second = (Round(learner.folder / "rounds" / f"000{number}") for number in (1, 2))
    for one, rows in ((first, old), (second, [old[0] | {"rating": "down"}, old[1] | {"rating": {"value": 0, "correction": "thus"}}])):
        one.path.mkdir(parents=True)
        write_rows(tmp_path / "inbox" / "rows.jsonl", rows)
        write_rows(one.arrived, [each.as_json() for each in arrived(learner.policy, frozenset())])
        one.done("collected", {})
    write_rows(first.rows, old)
    first.done("trained", {"start_run": None})
    bad = disliked_by([first, second])
    assert sorted(map(row_key, learner._replayed(second, [first], str(first.run), 40, bad)[0])) == sorted(map(row_key, old[2:]))
    assert learner._disliked_since([first], bad) == {"rows": 2, "rounds": [1]}
    assert said == ["! 2 answers that round 1 learned were found bad since: not replayed any more; `holdfast models rollback` goes back"]


def test_an_answer_that_was_mended_is_known_when_people_find_it_bad(
    policy_of: Callable[..., Policy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_MODELS", str(tmp_path / "models.jsonl"))
    learner = Learner(policy_of(round={"rows": 6}, replay={"old": 0.5, "general": 0.0}), print)
    rows = [row | {"output": row["output"] + " caf\u00c3\u00a9"} for row in make_rows(6)]
    write_rows(tmp_path / "inbox" / "first.jsonl", rows)
    first, _ = learner.next_round()
    assert first
    first.done("judged", learner._judge(first))
    ended(first, promoted=True, version=1)
    hashes = {"run": str(first.run), "base": "b", "adapter_sha256": "a" * 64, "behaviour_sha256": "b" * 64}
    file = registry.registry_file(os.environ)
    registry.promote(file, "helper", registry.record_verdict(file, "helper", hashes, None, "better"), None)
    write_rows(tmp_path / "inbox" / "second.jsonl", [row | {"rating": "down"} for row in rows] + make_rows(12)[6:])
    second, _ = learner.next_round()
    assert second
    facts = learner._judge(second)
    learned = [*read_lines(first.rows)]
    assert all(row["output"].endswith("caf\u00e9") for row in learned)
    assert (facts["disliked_since"], facts["replayed"]["old"]) == ({"rows": len(learned), "rounds": [1]}, 0)


def test_the_name_of_the_better_answer_is_no_answer(policy_of: Callable[..., Policy], tmp_path: Path) -> None:
    """A log of comparisons says `preferred: B`: nobody wants a model that answers "B"."""
    row = {"prompt": "What lists files?", "completion": "dir", "response_b": "ls -la", "topic": "x"}
    policy = policy_of()
    said = ["response_b", "B", "model_a", "left", "tie", "ls -l", "cat"]
    write_rows(tmp_path / "inbox" / "rows.jsonl", [row | {"preferred": one} for one in said])
    came, waits = without_unknown_ratings(policy, list(arrived(policy, frozenset())))
    assert [one.row["completion"] for one in came if one.row] == ["ls -la", "ls -l", "cat"]
    assert waits == {"rows": 4, "ratings": ["preferred B", "preferred left", "preferred model_a", "preferred tie"]}
    write_rows(tmp_path / "inbox" / "rows.jsonl", [row | {"correction": "B"}])
    assert [one.row["completion"] for one in arrived(policy, frozenset()) if one.row] == ["B"], "of several choices, say"


@pytest.mark.parametrize("field", ["data", "payload"])
def test_domain_and_person_of_a_message_in_one_field_of_a_stream_are_known(policy_of: Callable[..., Policy], field: str) -> None:
    row = {"prompt": "Two and two?", "completion": "four", "topic": "sums", "person": "ann"}
    policy = policy_of(sources=[{"redis": "redis://127.0.0.1:1/0", "stream": "asked"}])
    record = Record("asked/1-0", {"prompt": "Two and two?", "completion": "four"}, json.dumps({field: row}), "redis")
    one = _judged(record, "digest", 0, policy.sources[0], policy)
    assert (one.domain, one.person, one.row and one.row["topic"]) == ("sums", "ann", "sums")


def test_what_a_round_has_taken_is_not_taken_again_and_a_line_being_written_waits(policy_of: Callable[..., Policy], tmp_path: Path) -> None:
    policy = policy_of()
    file = write_rows(tmp_path / "inbox" / "rows.jsonl", make_rows(3))
    first = list(arrived(policy, frozenset()))
    taken = frozenset((one.place, one.sha256) for one in first)
    with file.open("a") as out:
        out.write('{"instruction": "half')
    assert list(arrived(policy, taken)) == []
    with file.open("a") as out:
        out.write(' of it", "output": "the other half"}\n')
    assert [one.place for one in arrived(policy, taken)] == [f"{file}:4"]


@needs_server
def test_a_stream_that_is_not_there_yet_is_waited_for_and_told_as_files_are(
    policy_of: Callable[..., Policy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody has asked anything yet when the three services are started: that ends no service."""
    import redis

    monkeypatch.setenv("HOLDFAST_MODELS", str(tmp_path / "models.jsonl"))
    with running_server(tmp_path) as server:
        policy = policy_of(sources=[{"redis": server.url, "stream": "asked"}, {"files": "inbox/*.jsonl"}])
        connections = redis.Redis.from_url(server.url).info
        before = connections()["total_connections_received"]
        assert main(["learn", str(tmp_path / "policy.yaml"), "--json"]) == 0
        assert connections()["total_connections_received"] == before + 1, "a look asks a server once"
        assert json.loads(capsys.readouterr().out)["waiting"]["not_there"] == ["stream asked", str(tmp_path / "inbox/*.jsonl")]

        def ends_the_second_time(_: float) -> None:
            looks.append(1)
            if len(looks) == 2:
                raise KeyboardInterrupt

        looks: list[int] = []
        monkeypatch.setattr(time, "sleep", ends_the_second_time)
        assert main(["learn", str(tmp_path / "policy.yaml"), "--follow"]) == 130
        told = capsys.readouterr().out
        assert told.count("waits for rows: 0 new ones of 20 that begin a round; nothing is there yet of stream asked") == 1
        assert list(arrived(policy, frozenset())) == []
        redis.Redis(port=server.port).xadd("asked", {"prompt": "a", "response": "b"})
        assert [one.source for one in arrived(policy, frozenset())] == [0]


def test_what_comes_of_somebody_who_was_forgotten_is_not_kept_nor_written_down(policy_of: Callable[..., Policy], tmp_path: Path) -> None:
    policy = policy_of(round={"rows": 3})
    rows = [row | {"person": "ann" if at == 2 else "ben"} for at, row in enumerate(make_rows(4))]
    write_rows(tmp_path / "inbox" / "rows.jsonl", rows)
    withdraw_person(Path(policy.folder or ""), "ann")
    begun, _ = Learner(policy, print).next_round()
    assert begun is not None
    assert [one["reason"] for one in read_lines(begun.arrived)] == ["", "", "withdrawn", ""]
    assert rows[2]["output"] not in begun.arrived.read_text()
    assert "ann" not in begun.arrived.read_text()


def test_what_a_version_has_learned_is_known_where_its_folder_is_reached_by_a_link(
    policy_of: Callable[..., Policy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of models names runs without links: else nothing was replayed, and nothing trained again for who is forgotten."""
    monkeypatch.setenv("HOLDFAST_MODELS", str(tmp_path / "models.jsonl"))
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    learner = Learner(policy_of(folder=str(tmp_path / "link" / "rounds"), replay={"old": 0.5, "general": 0.0}), print)
    one = Round(learner.folder / "rounds" / "0001")
    one.run.mkdir(parents=True)
    one.done("collected", {"time": 0.0})
    one.done("trained", {"start_run": None})
    write_rows(one.rows, make_rows(4))
    run = str((tmp_path / "disk" / "rounds" / "rounds" / "0001" / "run").resolve())
    hashes = {"run": run, "base": "b", "adapter_sha256": "a" * 64, "behaviour_sha256": "b" * 64}
    file = registry.registry_file(os.environ)
    registry.promote(file, "helper", registry.record_verdict(file, "helper", hashes, None, "better"), None)
    start = learner._promoted_run()
    assert [each.number for each in learned_by(rounds_of(learner.folder), start)] == [1]
    assert len(learner._replayed(one, rounds_of(learner.folder), start, 4, frozenset())[0]) == 4
    assert [str(each.run) for each in rounds_of(learner.folder)] == [run], "as what is withdrawn, or stays, is named"
    linked = [Round(tmp_path / "link" / "rounds" / "rounds" / "0001")]
    assert [each.number for each in learned_by(linked, start)] == [1], "rounds of before that were named by the link"


def test_a_version_that_was_rolled_back_does_not_come_back_with_the_rows_of_who_is_forgotten(
    policy_of: Callable[..., Policy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round 1 learned them, round 2 began with its adapter, and what is in place now has learned neither's rows."""
    monkeypatch.setenv("HOLDFAST_MODELS", str(tmp_path / "models.jsonl"))
    learner, rows, file = Learner(policy_of(), print), make_rows(6), tmp_path / "models.jsonl"
    rounds = [Round(learner.folder / "rounds" / f"000{number}") for number in (1, 2, 3)]
    for at, one in enumerate(rounds):
        one.run.mkdir(parents=True)
        one.done("collected", {"time": 0.0})
        for each in (one.rows, one.train):
            write_rows(each, rows[2 * at : 2 * at + 2])
        fates = [{"person": "ann" if at == 0 else "ben", "fate": "trained", "key": row_key(row)} for row in rows[2 * at : 2 * at + 2]]
        for journal, entries in ((one.new, []), (one.arrived, []), (one.fates, fates)):
            write_bytes(journal, b"".join(map(json_line, entries)))
        one.done("judged", {"rows": {"in": 2, "kept": 2, "rejected": 0, "replayed": 0}})
        one.done("trained", {"start_run": str(rounds[0].run) if at == 1 else None})
        one.done("decided", {"promoted": at != 1, "why": "it is so"})
        one.done("acknowledged", {})
        hashes = {"run": str(one.run), "base": "b", "adapter_sha256": f"{at}" * 64, "behaviour_sha256": f"{at}" * 64, "data_sha256": None}
        export = {"kind": "merged", "out": f"/out/{at}", "files": []}
        registry.promote(file, "helper", registry.record_export(file, "helper", hashes, export), "by hand")
        if at < 2:
            registry.promote(file, "helper", registry.record_verdict(file, "helper", HASHES, None, "better"), "before them all")
    told = price(learner, "ann")
    assert (told["rounds_again"], [one["path"] for one in told["exports"]]) == ([], ["/out/0", "/out/1"])
    assert forget(learner, "ann") is None
    assert [one.run.exists() for one in rounds] == [False, False, True]
    now = registry.read_registry(file)
    assert {now.versions["helper", number].facts["run"] for number in now.in_place["helper"]} == {"/before", str(rounds[2].run)}


HASHES = {"run": "/before", "base": "b", "adapter_sha256": "f" * 64, "behaviour_sha256": "f" * 64, "data_sha256": None}


def test_rounds_are_found_from_any_folder(policy_of: Callable[..., Policy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy_of(folder=None)
    found = {load_policy(tmp_path / "policy.yaml").folder}
    for other in ("one", "two"):
        (tmp_path / other).mkdir()
        monkeypatch.chdir(tmp_path / other)
        found.add(load_policy(Path("..", "policy.yaml")).folder)
    assert found == {str(tmp_path / "runs" / "learn" / "helper")}


UNREADABLE = [{"instruction": "x", "topic": "git"}] * 8


@pytest.mark.parametrize(
    ("held", "keys", "says"),
    [
        (UNREADABLE, {}, "git has 0 of 8"),  # verify would leave its rows out, and the gate the domain
        ([row | {"topic": "join"} for row in make_rows(4)] + UNREADABLE[:1], {}, "join has 4"),
        ([], {"prompts": "prompts.jsonl"}, "prompts.jsonl"),
        ([], {"general_rows": "empty.jsonl"}, "empty.jsonl has no row"),
    ],
)
def test_a_gate_with_nothing_behind_it_is_refused_before_anything_is_trained(
    policy_of: Callable[..., Policy], tmp_path: Path, held: list[Row], keys: Row, says: str
) -> None:
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Join a and b", "contians": "a-b"}\n')
    gate = {"rows": "held.jsonl", "domains": "topic"} | {name: keys[name] for name in keys if name == "prompts"}
    policy = policy_of(gate=gate, replay={name: keys[name] for name in keys if name == "general_rows"})
    good = [row | {"topic": "join"} for row in make_rows(60)[50:]]
    write_rows(tmp_path / "held.jsonl", held if held and held[0]["topic"] == "join" else good + held)
    with pytest.raises(Stop, match=says) as stop:
        refuse_unusable(policy)
    assert stop.value.code == 2


@pytest.mark.parametrize("number", [2**53 + 1, 2**64 + 1, 10**30 + 7, -(2**63) - 1])
def test_whole_numbers_of_any_size_are_learned_and_left_as_they_came(policy_of: Callable[..., Policy], tmp_path: Path, number: int) -> None:
    """Read by the standard library, as another program would, after the rows of somebody else were forgotten."""
    learner = Learner(policy_of(round={"rows": 20}, keep={"per_person": 1.0}, gate={"rows": "held.jsonl", "by_person": False}), print)
    calls = [{"type": "function", "function": {"name": "show", "arguments": {"ids": [number]}}}]
    answer = {"role": "assistant", "content": "", "tool_calls": calls}
    asked = [{"role": "user", "content": f"Show what {row['instruction']} came to"} for row in make_rows(20)]
    rows = [{"messages": [ask, answer], "person": "ben" if at else "ann"} for at, ask in enumerate(asked)]
    write_rows(tmp_path / "inbox" / "1.jsonl", rows)
    one, _ = learner.next_round()
    assert one is not None
    one.done("judged", learner._judge(one))
    write_rows(one.train, rows)  # as with a template that has calls
    ended(one, verdict="cannot_tell", why="as measured", version=None)
    forget(learner, "ann")
    left = [json.loads(line) for file in (one.train, one.new) for line in file.read_text().splitlines()]
    left += [row for line in one.arrived.read_text().splitlines() if (row := json.loads(line)["row"])]
    kept = [each["messages"][-1]["tool_calls"][0]["function"]["arguments"] for each in left if "messages" in each]
    assert len(kept) == 38
    assert {(arguments if isinstance(arguments, dict) else json.loads(arguments))["ids"][0] for arguments in kept} == {number}


def test_votes_are_rows_and_those_for_neither_are_not(policy_of: Callable[..., Policy], tmp_path: Path) -> None:
    policy = policy_of(sources=[{"votes": "run"}])
    (tmp_path / "run").mkdir()
    vote = {"prompt": "What is it?", "run": "first", "time": 1.0}
    chosen = {"chosen": "this", "rejected": "that", "response": "this", "voted": "tuned"}
    write_rows(
        tmp_path / "run" / "preferences.jsonl", [vote | chosen] * 3 + [vote | {"voted": "same", "answers": {"tuned": "a", "base": "b"}}]
    )
    came = list(arrived(policy, frozenset()))
    assert judge_rows(policy, came, set()).reasons[:3] == ["", "duplicate", "duplicate"]
    assert came[3].row is None
    assert came[0].row == {"prompt": "What is it?", "completion": "this"} | {
        name: value for name, value in (came[0].row or {}).items() if name not in ("prompt", "completion")
    }


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"sources": [{"files": "x", "redis": "redis://127.0.0.1"}]}, "files and redis"),
        ({"sources": [{"redis": "redis://127.0.0.1"}]}, "name of a stream"),
        ({"replay": {"old": 0.6, "general": 0.5}}, "leave no room"),
        ({"gate": {"rows": "held.jsonl", "margin": -0.1}}, "gate.margin"),
        ({"gate": {"rows": "nowhere.jsonl"}}, "no such file"),
        ({"ruond": {"rows": 3}}, r"ruond: unknown key \(value .*did you mean round\? \(line"),
        ({"replay": {"olds": 0.3}}, r"replay.olds: unknown key \(value 0.3\); did you mean replay.old\? \(line"),
        ({"round": {"rows": "many"}}, r"round.rows: 'many': input should be a valid integer \(line"),
        ({"name": "a/b"}, "'a/b': a name has letters"),
        ({"sources": None, "model": "tiny"}, "is the config of a run; a policy names one"),
    ],
)
def test_a_policy_that_cannot_work_is_refused_with_the_key(policy_of: Callable[..., Policy], keys: Row, says: str) -> None:
    with pytest.raises(Stop, match=says) as stop:
        policy_of(**keys)
    assert stop.value.code == 2


def ended(one: Round, **decided: Any) -> None:
    for phase in ("trained", "gated"):
        one.done(phase, {"refused": None, "start_run": None})
    one.done("decided", {"promoted": False} | decided)
    one.done("acknowledged", {})


def test_rows_that_were_too_few_to_tell_add_up_until_a_round_is_worse(
    policy_of: Callable[..., Policy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_MODELS", str(tmp_path / "models.jsonl"))
    learner = Learner(policy_of(round={"rows": 10}, replay={"old": 0.3, "general": 0.0}), print)
    rows, seen = make_rows(40), []
    rows[0] |= {"person": "ann"}
    for number, decided in enumerate(({"carry": True}, {"carry": True}, {"carry": False}, {"carry": False})):
        write_rows(tmp_path / "inbox" / f"{number}.jsonl", rows[10 * number : 10 * number + 10])
        one, _ = learner.next_round()
        assert one is not None
        facts = one.done("judged", learner._judge(one))
        seen.append((facts["carried"], facts["rows"]["in"], facts["rows"]["replayed"], len([*read_lines(one.new)])))
        assert len([*read_lines(one.train)]) + facts["held_out"] == facts["rows"]["kept"] + facts["rows"]["replayed"]
        ended(one, **decided)
    assert seen == [(None, 10, 0, 5), (1, 10, 5, 10), (2, 10, 10, 15), (None, 10, 0, 5)]
    third = rounds_of(learner.folder)[2]
    hashes = {"run": str(third.run), "base": "b", "adapter_sha256": "a" * 64, "behaviour_sha256": "b" * 64}
    file = registry.registry_file(os.environ)
    registry.promote(file, "helper", registry.record_verdict(file, "helper", hashes, None, "better"), None)
    assert price(learner, "ann")["rounds_again"] == [3], "the third round had learned what the first could not tell of"
    for one in rounds_of(learner.folder):
        one.run.mkdir()
    _remove(rounds_of(learner.folder), "ann", _keys(rounds_of(learner.folder), "ann"), {str(rounds_of(learner.folder)[0].run)})
    assert all(one.run.exists() for one in rounds_of(learner.folder)), "the first was refused, put in place by hand and trained again"
    assert not [path for path in learner.folder.rglob("*.jsonl") if rows[0]["output"] in path.read_text()]
