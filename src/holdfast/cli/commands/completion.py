"""`holdfast completion SHELL`: print what makes bash, zsh or fish complete commands, options and config keys."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from holdfast.base.errors import DONE
from holdfast.base.files import Json
from holdfast.config.config import Config
from holdfast.config.problems import paths_of

EXAMPLE = 'eval "$(holdfast completion bash)"'
_BASH = """_holdfast() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" key="" at
  COMPREPLY=()
  for ((at = 1; at < COMP_CWORD; at++)); do
    [[ "${{COMP_WORDS[at]}}" == -* ]] && break
    case "$key ${{COMP_WORDS[at]}}" in
{nested}
      *) [[ -z "$key" ]] && key="${{COMP_WORDS[at]}}" ;;
    esac
  done
  local words=""
  case "$key" in
    "") words="{verbs}" ;;
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  [[ "$cur" == -* ]] || COMPREPLY+=($(compgen -f -- "$cur"))
  [[ "${{COMPREPLY[0]}}" == *= ]] && compopt -o nospace
}}
complete -o filenames -F _holdfast holdfast
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")
    parser.add_argument("--json", action="store_true", help="print the words by command as JSON")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    words = {" ".join(path): given for path, given in _words(arguments.root)}
    if not arguments.json:
        print(_fish(words) if arguments.shell == "fish" else _bash(words, zsh=arguments.shell == "zsh"))
    return DONE, {"words": words}


def _words(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield what may follow each command: its subcommands, else its options, and keys of a config where it takes settings."""
    fill = getattr(parser, "fill", None)
    if fill:
        parser.fill = None  # type: ignore[attr-defined]
        fill()
    inner = next((action for action in parser._actions if isinstance(action, argparse._SubParsersAction)), None)
    given = list(inner.choices) if inner else []
    given += [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
    if any(action.metavar == "key=value" for action in parser._actions):
        given += [f"{path}=" for path in paths_of(Config) if "." in path or path == "model"]
    yield path, given
    for name, child in (inner.choices if inner else {}).items():
        yield from _words(child, (*path, name))


def _bash(words: dict[str, list[str]], zsh: bool) -> str:
    nested = "\n".join(f'      "{path}") key="{path}" ;;' for path in words if " " in path)
    cases = "\n".join(f'    "{path}") words="{" ".join(given)}" ;;' for path, given in words.items() if path)
    text = _BASH.format(verbs=" ".join(words[""]), nested=nested, cases=cases)
    return f"autoload -U +X bashcompinit && bashcompinit\n{text}" if zsh else text


def _fish(words: dict[str, list[str]]) -> str:
    lines = []
    for path, given in words.items():
        seen = "__fish_use_subcommand" if not path else f"__fish_seen_subcommand_from {path.rpartition(' ')[2]}"
        plain = [word for word in given if not word.startswith("--")]
        if plain:
            lines.append(f"complete -c holdfast -n '{seen}' -a '{' '.join(plain)}'")
        lines += [f"complete -c holdfast -n '{seen}' -l {word[2:]}" for word in given if word.startswith("--")]
    return "\n".join(lines)
