"""The part of `data make` that has a language model write the rows: its options, its journal, its bill."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from random import Random

from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.file_errors import at_place
from holdfast.base.files import Json
from holdfast.base.inert import inert
from holdfast.data.recipe.ask import Asker, Endpoint
from holdfast.data.recipe.generate import HELD_OUT_SHARE, Row, choose_held_out
from holdfast.data.recipe.model_rows import GenerationTotals, Order, write_rows
from holdfast.data.recipe.recipe import Recipe
from holdfast.data.recipe.wire import shown
from holdfast.terminal.counting import counting

_LONGEST_S = 86400.0
EXAMPLE = "--endpoint http://127.0.0.1:8080/v1 --model qwen2.5-7b-instruct"


def add_arguments(make: argparse.ArgumentParser) -> None:
    group = make.add_argument_group("rows written by a language model")
    group.add_argument("--endpoint", metavar="URL", help="an OpenAI-compatible endpoint, e.g. http://127.0.0.1:8080/v1")
    group.add_argument("--model", metavar="NAME", help="the model to ask there")
    group.add_argument("--key-env", metavar="NAME", default="OPENAI_API_KEY", help="variable that holds the key (default: OPENAI_API_KEY)")
    group.add_argument("--per-request", type=int, default=10, metavar="N", help="rows asked for at once (default: 10)")
    group.add_argument("--parallel", type=int, default=4, metavar="N", help="requests under way at once (default: 4)")
    group.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="for one answer (default: 120)")
    group.add_argument("--retries", type=int, default=6, metavar="N", help="of a request that fails (default: 6)")
    group.add_argument("--price-in", type=float, metavar="PRICE", help="of a million tokens sent")
    group.add_argument("--price-out", type=float, metavar="PRICE", help="of a million tokens received")
    group.add_argument("--max-cost", type=float, metavar="PRICE", help="stop there; rerun with a higher one to continue")


def written(arguments: argparse.Namespace, recipe: Recipe) -> tuple[list[Row], Json]:
    """Return the rows the model wrote, split, and the bill. Raises Stop."""
    order = _order_of(arguments, recipe)
    endpoint = Endpoint(
        arguments.endpoint, arguments.model, os.environ.get(arguments.key_env) or None, arguments.timeout, arguments.retries
    )
    endpoint.check()
    if endpoint.in_the_clear:
        print(inert(f"! the key goes to {shown(endpoint.url)} unencrypted: use https beyond your own network"), file=sys.stderr)
    journal = _journal(arguments)
    try:
        journal.parent.mkdir(parents=True, exist_ok=True)
        with Asker(endpoint) as asker, counting(f"asking {order.model}", recipe.rows) as advance:
            found = write_rows(order, asker, journal, lambda new, so_far: advance(new or so_far.resumed, _bill(order, so_far)))
    except OSError as error:
        raise at_place(error, error.filename or journal, "cannot be written", "choose another --out") from None
    except ValueError as error:
        raise Stop(USAGE, str(error), f"look at the recipe, or at {journal}") from None
    rows = found.rows
    Random(f"{recipe.seed} split").shuffle(rows)
    try:
        held_out = choose_held_out(rows, round(len(rows) * HELD_OUT_SHARE), Random(f"{recipe.seed} split"))
    except ValueError as error:
        raise Stop(BLOCKED, f"{error}", f"the rows are in {journal}; a larger --rows continues with other answers") from None
    for place in held_out:
        rows[place]["split"] = "held_out"
    cost = order.cost(found.tokens_in, found.tokens_out)
    return rows, {
        "model": order.model,
        "requests": found.requests,
        "retries": asker.retries,
        "tokens": {"in": found.tokens_in, "out": found.tokens_out, "uncounted_answers": found.uncounted},
        "cost": cost,
        "refused": dict(found.refused),
        "resumed": found.resumed,
        "told": [_bill(order, found), *_refused(found)],
    }


def finished(arguments: argparse.Namespace) -> None:
    """Delete the journal once the rows are where they belong."""
    if arguments.endpoint:
        _journal(arguments).unlink(missing_ok=True)


def _journal(arguments: argparse.Namespace) -> Path:
    out: Path = arguments.out
    return out.with_name(f".{out.name}.unfinished.jsonl")


def _order_of(arguments: argparse.Namespace, recipe: Recipe) -> Order:
    if not arguments.model:
        raise Stop(USAGE, "--endpoint needs --model NAME", f"for example: {EXAMPLE}")
    if not arguments.endpoint.startswith(("http://", "https://")):
        raise Stop(USAGE, f"--endpoint {shown(arguments.endpoint)}: not an http address", f"for example: {EXAMPLE}")
    for name, least in (("per_request", 1), ("parallel", 1), ("retries", 0), ("timeout", 0.001), ("price_in", 0), ("price_out", 0)):
        value = getattr(arguments, name)
        if value is not None and not value >= least:
            raise Stop(USAGE, f"--{name.replace('_', '-')} {value}: at least {least} is needed", f"for example: {EXAMPLE}")
    if arguments.timeout > _LONGEST_S:
        raise Stop(USAGE, f"--timeout {arguments.timeout:g}: at most {_LONGEST_S:g} seconds, a day", f"for example: {EXAMPLE}")
    if (arguments.price_in is None) != (arguments.price_out is None):
        raise Stop(USAGE, "--price-in and --price-out belong together", "give both, per million tokens")
    if arguments.max_cost is not None and arguments.price_in is None:
        raise Stop(USAGE, "--max-cost needs prices to count with", "give --price-in and --price-out, per million tokens")
    prices = arguments.price_in, arguments.price_out, arguments.max_cost
    return Order(recipe, arguments.model, arguments.per_request, arguments.parallel, *prices)


def _bill(order: Order, found: GenerationTotals) -> str:
    cost = order.cost(found.tokens_in, found.tokens_out)
    unknown = f" ({found.uncounted:,} answers not counted)" if found.uncounted else ""
    price = "" if cost is None else f", cost {cost:,.4f}"
    return f"{found.requests:,} requests, {found.tokens_in:,} tokens in, {found.tokens_out:,} out{unknown}{price}"


def _refused(found: GenerationTotals) -> list[str]:
    if not found.refused:
        return []
    return ["refused: " + ", ".join(f"{count:,} {reason}" for reason, count in found.refused.most_common())]
