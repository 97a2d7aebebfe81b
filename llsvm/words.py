"""The words of a command line: how options are typed, LIBLINEAR's -wLABEL W, and what is mistyped, in sentences."""

from __future__ import annotations

import re
from functools import reduce

import click

from llsvm.core import UsageError, quoted
from llsvm.options import OPTIONS, POSITIVE, WEIGHTS, Option


def typed(*names: str, **own: Option):
    """A decorator that adds these options of the table, and others like them, to a command."""
    rows = {name: OPTIONS[name] for name in names} | own
    return lambda command: reduce(lambda made, name: _for_click(name, rows[name])(made), reversed(rows), command)


def _for_click(name: str, option: Option):
    """click finds the text; what it stands for, and what it is if there is none, is told by the option."""
    kind = option.kind
    shown = option.default if kind and option.shown is None else option.shown
    default = "; ".join(str(part) for part in (shown, kind and kind.range) if part)

    def value(context, parameter, text):
        if text in (None, ()):
            return option.unsaid() if option.unsaid else option.default
        try:
            found = kind.convert(text) if kind else text
            if not kind or not kind.at_once or kind.is_right(found):
                return found
            wrong = f"{quoted(str(found))}: {kind.needed}"
        except ValueError:
            wrong = f"{quoted(text)}: {kind.unread or kind.needed}"
        raise click.BadParameter(wrong, context, parameter)

    return click.option(*option.words.split(), name, default=None, callback=value, is_flag=not kind,
                        type=(str, float) if kind is WEIGHTS else None, multiple=kind is WEIGHTS,
                        help=option.help + f"  [default: {default}]" * bool(default), hidden=not option.help,
                        metavar=option.metavar or (kind and kind.metavar))  # fmt: skip


class Command(click.Command):
    """A command that knows the ways in which an option is mistyped, and LIBLINEAR's -wLABEL VALUE."""

    def parse_args(self, context, arguments):
        """-threads is no -t; click would say so."""
        known = {name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)}
        arguments = _name_weights(arguments) if "--weight" in known else arguments
        for word in arguments[: arguments.index("--")] if "--" in arguments else arguments:
            if re.match("-[a-z]{2}", word) and f"-{word.partition('=')[0]}" in known:
                raise UsageError(f"{word}: no such option", f"did you mean -{word}?")
        return super().parse_args(context, arguments)


def _name_weights(arguments: list[str]) -> list[str]:
    """click needs a name for the option, and for a negative number behind -B no blank."""
    result, rest = [], list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*result, word, *rest]
        if word == "-w" and rest[:1] == ["balanced"]:
            rest.pop(0)
            result.append("--balanced")
        elif word == "-w":
            label, weight = [*rest, "LABEL", "W"][:2] if len(rest) > 1 else ("LABEL", "W")
            raise UsageError(" ".join(["-w", *rest[:1]]) + ": the label of a weight stands right behind the letter",
                             f"-w{label} {weight}, or -w balanced")
        elif word.startswith("-w"):
            try:
                weight = float(rest[0])
            except (IndexError, ValueError):
                raise UsageError(f"{' '.join([word, *rest[:1]])}: a weight, a number, is needed behind {word}",
                                 "-wLABEL W, for example -w1 2") from None
            if not POSITIVE.is_right(weight):
                raise UsageError(f"{word} {weight:g}: {POSITIVE.needed}")
            result += ["--weight", word[2:], rest.pop(0)]
        elif word == "-B" and rest[:1] and rest[0].startswith("-"):
            result.append(f"-B{rest.pop(0)}")
        else:
            result.append(word)
    return result


ABSENT = {
    "-b": "there are no probabilities: llsvm-predict --scores writes decision values",
    "-m": "-m goes with llsvm-split; --threads with every command",
    "-i": "there is no warm start",
    "-p": "there is no regression",
}


def in_our_words(error: click.ClickException) -> tuple[str, str]:
    """What click says, as a sentence and a hint."""
    context, near = getattr(error, "ctx", None), getattr(error, "possibilities", None)
    hint = f"did you mean {' or '.join(near)}?" if near else f"{context.command_path} --help" if context else ""
    message = error.message.rstrip(".")
    if isinstance(error, click.NoSuchOption):
        return f"{error.option_name}: no such option", hint if near else ABSENT.get(error.option_name, hint)
    if isinstance(error, click.MissingParameter) and error.param and context:
        return f"{error.param.metavar or error.param.name.upper()} is missing", context.get_usage().partition(": ")[2]
    if isinstance(error, click.BadParameter) and error.param:
        return f"{error.param.opts[0]} {message}", hint
    return message[:1].lower() + message[1:], hint
