"""A command line whose errors name the next command, and which imports what a verb needs only when that is used."""

from __future__ import annotations

import argparse
import difflib
import functools
import importlib
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from holdfast.base.errors import DONE, USAGE, Stop

_WITHOUT_OPTION = {  # what other programs have an option for
    "resume": "an unfinished run goes on by itself: give the command it was begun with",
    "continue": "an unfinished run goes on by itself: give the command it was begun with",
    "config": "the config stands without an option, as in holdfast train CONFIG",
}


class _Once(argparse.Action):
    """An option of one value: where it is given again with another, argparse would take the last without a word."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: str | None = None) -> None:
        assert isinstance(parser, Parser)
        if option_string is not None and repr(parser.given.setdefault(self.dest, values)) != repr(values):  # NaN is no other NaN
            raise Stop(
                USAGE, f"{option_string} is given twice: {parser.given[self.dest]} and {values}", "it takes one value; keep one of them"
            )
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """argparse, but its errors name the nearest verb or option and the next command, and `fill` adds what it takes once it is asked to."""

    fill: Callable[[], None] | None = None
    behind_dashes: str | None = None  # what is to hold the words behind two dashes

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.given: dict[str, Any] = {}
        for name in (None, "store"):
            self.register("action", name, _Once)

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '([^']*)'|unrecognized arguments: (\S+)", message)
        known = [*(str(choice) for action in self._actions for choice in action.choices or ()), *self._option_string_actions]
        word = (wrong[1] or wrong[2] or "").partition("=")[0] if wrong else ""
        close = _close_to(word, known)
        near = sorted(close, key=lambda one: sorted(one) != sorted(word))[:1]  # letters that changed places come first
        if wrong and wrong[1] is not None:
            option = re.match(r"argument (-\S+?)[:/]", message)
            of_option = f"{option[1]} {wrong[1]}: no such value{self._choices_of(option[1])}" if option else ""
            message = of_option or f"there is no command {wrong[1]!r}"
        for action in self._actions:  # argparse lists those that may be left out, too
            if not action.option_strings and action.nargs in ("*", "?"):
                message = message.replace(f", {action.metavar or action.dest}", "")
        if no_number := re.match(r"argument (\S+): invalid (int|float) value: '(.*)'", message):
            called, kind, given = no_number.groups()
            message = f"{called} {given}: a {'whole number' if kind == 'int' else 'number'} is needed"
        hint = f"did you mean {near[0]}? " if near else ""
        takes_settings = any(action.metavar == "key=value" for action in self._actions)
        if takes_settings and wrong and wrong[2] and (not near or near == ["--help"] or wrong[2].startswith("--set")):
            hint = f"settings are given without dashes, as in {_as_setting(message[wrong.start(2) :]) or 'train.lr=1e-4'}; "
        if takes_settings and wrong and wrong[2] and (setting := _as_setting(message[wrong.start(2) :])) and word not in known:
            hint = f"settings are given without dashes, as in {setting}; "
        if word in ("resume", "continue"):
            hint = "an unfinished run goes on by itself: rerun `holdfast train CONFIG` (or `holdfast run -- COMMAND`) as it was begun; "
        if word.startswith("--") and (meant := next((said for name, said in _WITHOUT_OPTION.items() if name in word), "")):
            hint = f"{meant}; "
        example = (self.epilog or "").partition("example:\n")[2].strip().splitlines()
        if example and "arguments are required" in message:
            hint = f"for example: {example[0].strip()}; {hint}"
        raise Stop(USAGE, message, f"{hint}`{self.prog} --help` shows what there is")

    def _choices_of(self, option: str) -> str:
        """Return what an option may be, as the end of a sentence."""
        action = self._option_string_actions.get(option)
        return f"; it is one of {', '.join(map(str, action.choices))}" if action is not None and action.choices else ""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but words nobody takes are told by the verb they were given to."""
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            found.parser.error(f"unrecognized arguments: {' '.join(rest)}")
        return found

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, after filling it; words that come after an option belong to the list that was begun before it."""
        fill, self.fill, self.given = self.fill, None, {}
        if fill:
            fill()
        words: list[str] = []
        if self.behind_dashes and args is not None and "--" in args:
            at = args.index("--")
            args, words = args[:at], args[at:]
        if not words and not (sys.argv[1:] if args is None else args) and any(action.nargs == argparse.PARSER for action in self._actions):
            self.print_help()
            raise SystemExit(DONE)
        found, rest = super().parse_known_args(args, namespace)
        if self.behind_dashes:
            setattr(found, self.behind_dashes, words)
        lists = [action.dest for action in self._actions if not action.option_strings and action.nargs in ("*", "+")]
        if not lists or any(word.startswith("-") for word in rest):
            return found, rest
        setattr(found, lists[-1], [*getattr(found, lists[-1]), *rest])
        return found, []


def _close_to(word: str, known: list[str]) -> list[str]:
    """Return the words that one is most like; dashes make no option like another."""
    if not word.startswith("-"):
        return difflib.get_close_matches(word, known, n=3)
    named = {one.lstrip("-"): one for one in known}  # options stand last: one that is called like a verb is meant
    return [named[one] for one in difflib.get_close_matches(word.lstrip("-"), [*named], n=3)]


def _as_setting(words: str) -> str:
    """Return an option given with its value as KEY=VALUE; empty where no key is called so."""
    from holdfast.config.problems import key_named  # pydantic is imported only where something is wrong

    option, _, value = words.replace("=", " ", 1).partition(" ")
    key = key_named(option)
    return f"{key}={value.partition(' ')[0] or 'VALUE'}" if key else ""


def add_verbs(
    parser: argparse.ArgumentParser, dest: str, summaries: Mapping[str, str], module_of: str, elsewhere: Mapping[str, str] | None = None
) -> None:
    """Give the parser a word for each summary; `dest` is to hold the word that is used, `dest`_module its module.

    `module_of` and the word name the module, or `elsewhere` does, which is imported only then. It has EXAMPLE, add_arguments and run.
    """
    words = parser.add_subparsers(dest=dest, metavar="COMMAND", required=True)
    for word, summary in summaries.items():
        child = words.add_parser(word, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        assert isinstance(child, Parser)
        module = (elsewhere or {}).get(word) or f"{module_of}{word}"
        child.fill = functools.partial(_fill, child, module, f"{dest}_module")


def _fill(parser: Parser, name: str, dest: str) -> None:
    module = importlib.import_module(name)
    parser.description, parser.epilog = module.__doc__, f"example:\n  {module.EXAMPLE}"
    parser.set_defaults(**{dest: module, "parser": parser})
    module.add_arguments(parser)
