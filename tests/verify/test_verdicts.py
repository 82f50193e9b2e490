"""The statistics of verify, on results whose truth is known, and against scipy."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.base.errors import Stop
from holdfast.verify import stats
from holdfast.verify.compare import REFUSAL, clusters_of
from holdfast.verify.expectations import _schema, failed, parses, read_prompts
from holdfast.verify.stats import holm, paired_difference, pairs_for, rows_for, share_interval, sign_test, t_cdf, t_quantile
from holdfast.verify.verdict import Losses, Pairs, ab_answer, judge, loss_answer, no_longer_ends, pairs_answer


def drawn(rng: Any, effect: float, clusters: int = 40, each: int = 3, shared: float = 0.3, own: float = 0.3) -> Losses:
    """Rows in clusters that move together; effect: nats a token by which the tuned model is better."""
    tokens = rng.integers(5, 60, clusters * each).astype(float)
    group = np.repeat(np.arange(clusters), each)
    base = tokens * rng.gamma(4, 0.5, len(tokens))
    moved = rng.standard_t(5, clusters)[group] * shared + rng.normal(0, own, len(tokens)) - effect
    return Losses(tokens, base, base + tokens * moved, group)


def verdict_of(losses: Losses, pairs: Pairs | None = None) -> dict[str, Any]:
    loss, difference = loss_answer(losses)
    return judge(loss, difference, {"exact_match": pairs_answer(pairs)} if pairs else {})


@pytest.mark.parametrize(("clusters", "each", "draws"), [(40, 3, 700), (12, 5, 700), (200, 1, 600)])
def test_no_effect_is_rarely_called_one(clusters: int, each: int, draws: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 draws in all; with two tests a draw, corrected."""
    monkeypatch.setattr(stats, "DRAWS", 400)
    rng = np.random.default_rng(clusters)
    found = []
    for _ in range(draws):
        passed = rng.random((2, clusters)) < 0.6
        found.append(verdict_of(drawn(rng, 0.0, clusters, each), Pairs(*passed.tolist()))["verdict"])
    assert found.count("better") <= 0.05 * draws and found.count("worse") <= 0.05 * draws
    assert found.count("better") + found.count("worse") > 0, "a test that never speaks is no test"


@pytest.mark.parametrize(("effect", "least", "most"), [(0.05, 0.0, 0.4), (0.15, 0.45, 0.95), (0.5, 0.99, 1.0)])
def test_an_effect_is_found_as_often_as_its_size_allows(effect: float, least: float, most: float, monkeypatch: Any) -> None:
    monkeypatch.setattr(stats, "DRAWS", 400)
    rng = np.random.default_rng(1)
    found = [verdict_of(drawn(rng, effect))["verdict"] for _ in range(200)]
    assert least <= found.count("better") / 200 <= most and found.count("worse") <= 2


def test_the_rows_that_are_said_to_be_needed_are_about_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "DRAWS", 400)
    rng = np.random.default_rng(2)
    pilot = loss_answer(drawn(rng, 0.15, 2000))[1]
    assert pilot.error is not None
    needed = rows_for(0.15, pilot.error * np.sqrt(2000 / 20), 20)
    assert needed is not None and 20 < needed < 200
    found = [verdict_of(drawn(rng, 0.15, needed))["verdict"] for _ in range(200)]
    assert 0.65 <= found.count("better") / 200 <= 0.93, "four in five, within what 200 draws can tell"


def test_rows_that_are_needed_are_no_questions_and_end_no_contradiction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "DRAWS", 400)
    losses = drawn(np.random.default_rng(4), 0.05, 200, 1)
    nearly = Pairs([False] * 6 + [True] * 14, [True] * 6 + [False] + [True] * 13)  # of 20 questions
    alone, asked = verdict_of(losses), verdict_of(losses, nearly)
    assert alone["verdict"] == asked["verdict"] == "cannot_tell"
    assert alone["rows_needed"] == asked["rows_needed"] > 200, "200 rows were measured: 37 are no more of them"
    assert "; about 37 questions would tell by exact_match (20 were asked)" in asked["why"]
    torn = verdict_of(drawn(np.random.default_rng(5), 0.5), Pairs([True] * 40, [False] * 40))
    assert torn["why"] == "better by loss, worse by exact_match" and torn["rows_needed"] is None


def test_the_interval_holds_the_truth_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "DRAWS", 400)
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(300):
        interval = loss_answer(drawn(rng, 0.2, 15))[0]["interval"]
        held += interval[0] <= -0.2 <= interval[1]
    assert 0.91 <= held / 300 <= 0.99


def test_clusters_are_what_counts_and_not_rows() -> None:
    rng = np.random.default_rng(4)
    few = drawn(rng, 0.1, clusters=6, each=50, own=0.01)
    alone = paired_difference(few.tuned - few.base, few.tokens, np.arange(300))
    together = paired_difference(few.tuned - few.base, few.tokens, few.clusters)
    assert together.error > 4 * alone.error and together.clusters == 6  # type: ignore[operator]


def test_too_few_rows_cannot_tell() -> None:
    answer = verdict_of(drawn(np.random.default_rng(5), 0.5, clusters=2))
    assert answer["verdict"] == "cannot_tell" and "fewer than 5" in answer["why"]


NULLS: dict[str, Any] = {
    "log-normal": lambda rng, shape: rng.lognormal(0, 1, shape) - math.exp(0.5),
    "log-normal, turned": lambda rng, shape: math.exp(0.5) - rng.lognormal(0, 1, shape),
    "exponential": lambda rng, shape: rng.exponential(1, shape) - 1,
    "normal": lambda rng, shape: rng.normal(0, 1, shape),
}


@pytest.mark.matrix
@pytest.mark.parametrize("null", NULLS)
@pytest.mark.parametrize("rows", [3, 4, 5, 7, 10, 20, 40])
def test_the_level_holds_under_skew_from_3_rows_on(null: str, rows: int) -> None:
    """700 draws: four standard errors of 5 % are 3.3 points, of the coverage the same."""
    draws, rng = 700, np.random.default_rng(rows)
    ones, clusters, held, words = np.ones(rows), np.arange(rows), 0, list[str]()
    for moved in NULLS[null](rng, (draws, rows)):
        loss, difference = loss_answer(Losses(ones, ones * 5, ones * 5 + moved, clusters))
        held += loss["interval"] is None or loss["interval"][0] <= 0 <= loss["interval"][1]
        words.append(judge(loss, difference, {})["verdict"])
    error = 4 * math.sqrt(0.05 * 0.95 / draws)
    assert max(words.count("better"), words.count("worse")) / draws <= 0.05 + error
    assert held / draws >= 0.95 - error and (rows >= 5 or set(words) == {"cannot_tell"})


def test_the_level_holds_under_skew_of_clusters_of_other_sizes() -> None:
    draws, rng = 500, np.random.default_rng(11)
    found = []
    for _ in range(draws):
        group = np.repeat(np.arange(12), rng.integers(1, 6, 12))
        tokens = rng.integers(5, 60, len(group)).astype(float)
        moved = (rng.lognormal(0, 1, 12) - math.exp(0.5))[group] + rng.normal(0, 0.1, len(group))
        found.append(verdict_of(Losses(tokens, tokens, tokens * (1 + moved), group))["verdict"])
    assert max(found.count("better"), found.count("worse")) / draws <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / draws)


@pytest.mark.parametrize(("rows", "share"), [(5, 0.2), (10, 0.2), (28, 0.1), (40, 0.1)])
@pytest.mark.parametrize("noise", [0.0, 1e-4])
def test_the_same_is_not_said_where_a_share_of_rows_differs(rows: int, share: float, noise: float) -> None:
    rng, found = np.random.default_rng(12), []
    for _ in range(300):
        moved = np.where(rng.random(rows) < share, 2.0, 0.0) + rng.normal(0, noise, rows)
        found.append(verdict_of(Losses(np.ones(rows), np.ones(rows), 1 + moved, np.arange(rows)))["verdict"])
    assert found.count("same") / 300 <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / 300)
    assert rows >= 29 or "same" not in found


def test_few_equal_rows_say_how_many_would_tell_and_many_are_the_same() -> None:
    for moved in (0.0, -0.5):
        few, many = (Losses(np.ones(n), np.ones(n), np.full(n, 1 + moved), np.arange(n)) for n in (5, 29))
        answer = verdict_of(few)
        assert (answer["verdict"], answer["rows_needed"]) == ("cannot_tell", 29) and "fewer than 29" in answer["why"]
        assert verdict_of(many)["verdict"] == ("better" if moved else "same")


@pytest.mark.parametrize("count", [3, 4, 5, 6, 12, 40, 101])
def test_the_interval_of_a_share_leaves_one_half_out_where_the_sign_test_is_sure(count: int) -> None:
    for wins in range(count + 1):
        low, high = share_interval(wins, count - wins) or (0.0, 1.0)
        assert (low > 0.5 or high < 0.5) == (sign_test(wins, count - wins) < 0.05), wins


def test_what_is_of_no_account_is_the_same() -> None:
    rng = np.random.default_rng(6)
    assert verdict_of(drawn(rng, 0.001, 400, shared=0.001, own=0.0))["verdict"] == "same"
    same = drawn(rng, 0.0, 400, shared=0.01, own=0.01)
    assert verdict_of(Losses(same.tokens, same.base, same.base, same.clusters))["verdict"] == "same"


def test_the_far_tail_of_a_test_is_no_number() -> None:
    answer = verdict_of(drawn(np.random.default_rng(9), 2.0, 400))
    assert answer["verdict"] == "better" and "p < 1e-9" in answer["why"] and "p = 0" not in answer["why"]


def test_rows_of_training_prove_nothing() -> None:
    loss, difference = loss_answer(drawn(np.random.default_rng(7), 2.0))
    assert judge(loss, difference, {}, trained_on="trained on")["verdict"] == "cannot_tell"


def test_tests_that_contradict_each_other_cannot_tell() -> None:
    loss, difference = loss_answer(drawn(np.random.default_rng(8), 2.0))
    passed = {"expectations": pairs_answer(Pairs([True] * 40, [False] * 40))}
    answer = judge(loss, difference, passed)
    assert answer["verdict"] == "cannot_tell" and "better by loss, worse by expectations" in answer["why"]


def test_answers_to_one_prompt_count_once() -> None:
    again = pairs_answer(Pairs([False] * 20, [True] * 20, ["one"] * 20))
    assert (again["only_tuned"], again["clusters"], again["p_value"]) == (20, 1, 1.0)
    alone = pairs_answer(Pairs([False] * 20, [True] * 20, range(20)))
    assert alone["p_value"] == pairs_answer(Pairs([False] * 20, [True] * 20))["p_value"] == 2 / 2**20
    turned = pairs_answer(Pairs([False] * 6 + [True] * 9, [True] * 6 + [False] * 9, [*range(6), *["one"] * 9]))
    assert (turned["clusters_tuned"], turned["clusters_base"], turned["p_value"]) == (6, 1, 1.0)


@pytest.mark.parametrize(
    ("base", "tuned", "said"),
    [
        ([True] * 20, [False] * 6 + [True] * 14, True),
        ([True] * 20, [False] * 5 + [True] * 15, False),
        ([True] * 4, [False] * 3 + [True], True),
        ([False] * 20, [False] * 20, False),
        ([True] * 10 + [False] * 10, [False] * 5 + [True] * 15, False),
    ],
)
def test_answers_no_longer_end_where_the_test_or_half_of_them_say_so(base: list[bool], tuned: list[bool], said: bool) -> None:
    assert no_longer_ends(pairs_answer(Pairs(base, tuned))) is said
    assert not no_longer_ends(None)


def test_ties_are_what_the_noise_floor_says() -> None:
    losses = Losses(np.ones(4), np.zeros(4), np.array([-1.0, 1.0, 1e-6, -1e-6]), np.arange(4))
    assert {k: v for k, v in ab_answer(losses, 1e-4).items() if k != "interval"} == {"wins": 1, "losses": 1, "ties": 2, "p_value": 1.0}


def test_the_numbers_are_those_of_scipy() -> None:
    scipy = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    for wins, losses in ((0, 0), (3, 9), (40, 60), (5, 0), (2500, 2400)):
        assert sign_test(wins, losses) == pytest.approx(scipy.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0, rel=2e-2)
        if wins + losses:
            method = "exact" if wins + losses <= 4000 else "wilson"
            theirs = scipy.binomtest(wins, wins + losses).proportion_ci(method=method)
            assert share_interval(wins, losses) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    for freedom in (1, 2, 3, 10, 29, 30, 1500):
        for value in (-3.0, -0.4, 0.0, 1.0, 2.5):
            assert t_cdf(value, freedom) == pytest.approx(scipy.t.cdf(value, freedom), abs=1e-6)
        assert t_quantile(0.975, freedom) == pytest.approx(scipy.t.ppf(0.975, freedom), rel=1e-4)
    rng = np.random.default_rng(9)
    differences = rng.normal(0.1, 1, 50)
    ours = paired_difference(differences, np.ones(50), np.arange(50))
    plain = scipy.ttest_1samp(differences, 0)
    assert abs(ours.value / ours.error) == pytest.approx(abs(plain.statistic), rel=1e-9) and ours.p_value >= plain.pvalue
    theirs = scipy.bootstrap((differences,), np.mean, method="BCa", n_resamples=4000, rng=rng).confidence_interval
    assert ours.interval == pytest.approx((theirs.low, theirs.high), abs=0.1)


def test_p_values_are_corrected_by_holm() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})


def test_the_pairs_that_are_needed_grow_with_nearness() -> None:
    near, far = pairs_for(22, 18, 100), pairs_for(30, 10, 100)
    assert near and far and near > 5 * far and pairs_for(5, 5, 100) is None


ANSWERS: list[tuple[dict[str, Any], str, bool]] = [
    ({"equals": "42"}, " 42\n", True),
    ({"equals": ["yes", "Yes"]}, "Yes", True),
    ({"equals": "42"}, "42.", False),
    ({"contains": ["a", "b"]}, "b and a", True),
    ({"contains": ["a", "z"]}, "a", False),
    ({"equals": "caf\u00e9"}, "cafe\u0301", True),
    ({"contains": "cafe\u0301"}, "the caf\u00e9 is open", True),
    ({"json": True}, '```json \r\n{"a": 1}\r\n```', True),
    ({"regex": r"^\d{4}-\d\d$"}, "2026-11", True),
    ({"regex": r"^\d+$"}, "x1", False),
    ({"json": True}, '```json\n{"a": 1}\n```', True),
    ({"json": True}, "{'a': 1}", False),
    ({"json_schema": {"type": "object", "required": ["a"]}}, '{"a": 1}', True),
    ({"json_schema": {"type": "object", "required": ["a"]}}, '{"b": 1}', False),
    ({"number": 3.14, "tolerance": 0.01}, "about 3.1416", True),
    ({"number": 1250}, "It is 1,250", True),
    ({"number": 3}, "none", False),
    ({"number": -5}, "It is \u22125.", True),  # a minus sign, and no hyphen
    ({"number": 5}, "It is \u22125.", False),
    ({"number": 5}, "of GPT-4 it takes 3-5", True),  # hyphens, and no minus
    ({"number": -5}, "x = (-5)", True),
    ({"number": 0.5}, "The chance is .5", True),
    ({"number": 5}, "The chance is .5", False),
    ({"number": 3.14}, "Das sind 3,14.", True),
    ({"number": 14}, "Das sind 3,14.", False),
    ({"number": 1250.5}, "Das macht 1.250,50 €", True),
    ({"number": 12000}, "12\u202f000 in all", True),
    ({"number": 0}, "12\u202f000 in all", False),
    ({"number": 3}, "1,2,3", True),
    ({"number": 5}, "[1,5]", True),
    ({"number": 1234567.5}, "$1,234,567.50", True),
    ({"number": -2.5e-3}, "about -2.5e-3", True),
    ({"json": True}, '{"a": NaN}', False),  # as Python writes it, and nobody else reads it
    ({"json_schema": {"properties": {"a": {"type": "number"}}}}, '{"a": -Infinity}', False),
    ({"runs": "bash"}, "for f in *; do echo $f; done", True),
    ({"runs": "bash"}, "```bash\nls -la | wc -l\n```", True),
    ({"runs": "bash"}, "for f in *; do echo", False),
    ({"runs": "bash"}, "", False),
    ({"equals": "x", "contains": "y"}, "x", False),
]


@pytest.mark.parametrize(("expected", "answer", "passes"), ANSWERS)
def test_an_answer_is_held_against_what_is_expected(expected: dict[str, Any], answer: str, passes: bool, tmp_path: Path) -> None:
    if "json_schema" in expected:
        pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": "?"} | expected))
    assert (failed(read_prompts(file)[0], answer) == []) == passes


def test_a_shell_that_is_not_here_fails_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image without bash would find that no answer of either model can be parsed."""
    monkeypatch.setattr(shutil, "which", lambda name, path: None if name == "bash" else f"/bin/{name}")
    for number, shell in enumerate(("sh", "bash")):
        (tmp_path / f"{number}.jsonl").write_text(json.dumps({"prompt": "?", "runs": shell}))
    assert read_prompts(tmp_path / "0.jsonl")[0].expected == {"runs": "sh"}
    with pytest.raises(Stop, match="bash is not in /usr/bin or /bin here"):
        read_prompts(tmp_path / "1.jsonl")


def test_prompts_of_one_name_or_of_the_same_words_count_as_one(tmp_path: Path) -> None:
    names = ["a", "a", None, None, "b", None, 4]
    rows = [{"prompt": "?", "equals": "x"} | ({"cluster": name} if name is not None else {}) for name in names]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    prompts = read_prompts(tmp_path / "prompts.jsonl")
    apart = clusters_of(prompts, [[1], [2], [3], [4], [5], [3], [6]])
    assert [apart.index(one) for one in apart] == [0, 0, 2, 3, 4, 2, 6], "of one name, or asked twice; 4 is a name and no line"
    assert len({*clusters_of(prompts, [[1], [2], [2], [4], [5], [5], [6]])}) == 4, "through another that is both"


def test_a_command_is_parsed_and_never_run(tmp_path: Path) -> None:
    assert parses(f"touch {tmp_path}/made; echo $(touch {tmp_path}/made)", "bash")
    assert not [*tmp_path.iterdir()]


def test_every_mistake_of_a_file_of_prompts_is_told(tmp_path: Path) -> None:
    rows = [
        "not json",
        "[1]",
        json.dumps({"prompt": "?"}),
        json.dumps({"prompt": "", "equals": "x"}),
        json.dumps({"prompt": "?", "equal": "x"}),
        json.dumps({"prompt": "?", "regex": "(a+)+$"}),
        json.dumps({"prompt": "?", "number": "3"}),
        json.dumps({"prompt": "?", "runs": "rm"}),
        json.dumps({"messages": [{"role": "assistant", "content": "x"}], "equals": "x"}),
        json.dumps({"prompt": "?", "number": float("nan")}),
        json.dumps({"prompt": "?", "number": 10**400}),
        json.dumps({"prompt": "?", "number": 3, "tolerance": float("inf")}),
        json.dumps({"prompt": "?", "json_schema": {"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {}}}),
        json.dumps({"prompt": "?", "json_schema": {"$ref": "https://example.org/x.json"}}),
        json.dumps({"prompt": "fine, in two lines for some:\u2028here", "equals": "x"}, ensure_ascii=False),
    ]
    (tmp_path / "prompts.jsonl").write_text("\n".join(rows))
    with pytest.raises(Stop) as stop:
        read_prompts(tmp_path / "prompts.jsonl")
    assert stop.value.code == 2 and "14 mistakes" in stop.value.message
    for number, word in enumerate(
        ("not JSON", "object", "nothing is expected", "empty", "unknown key equal", "repeat", "number", "bash"), 1
    ):
        assert any(f"line {number}:" in line and word in line for line in stop.value.message.splitlines()), (number, word)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}},
        {"$ref": "https://json-schema.org/draft/2020-12/schema"},
        {"$id": "https://a.example/b.json", "$ref": "c.json", "$defs": {"c": {"$id": "c.json", "$ref": "#/nowhere"}}},
        {"const": {"$ref": "nothing"}, "properties": {"$ref": {"type": "string"}}},
        True,
    ],
)
def test_a_schema_may_refer_to_what_is_in_it(schema: Any) -> None:
    assert _schema(schema) is None


def test_a_refusal_is_one_with_either_apostrophe() -> None:
    for text in ("I'm sorry, no", "I\u2019m sorry, no", "I can\u2019t do that", "I won\u2019t", "I cannot", "As an AI"):
        assert REFUSAL.search(text), text
    assert not REFUSAL.search("You can\u2019t miss it")
