"""How settings are checked, changed by name and refused; what they mean stands in `policy`."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal, NoReturn, get_args, get_origin

from .errors import BadPolicy


def refuse(rule: str, hint: str) -> NoReturn:
    """Raise a `BadPolicy` that says which rule was broken, never by what."""
    message = f"policy: {rule}"
    raise BadPolicy(message, hint=hint)


def check(part: Any, path: str) -> None:
    """Refuse a setting of the wrong type or out of its range; `path` leads to the part."""
    for one in fields(part):
        value = getattr(part, one.name)
        if get_origin(one.type) is Literal:
            choices = get_args(one.type)
            holds, rule = value in choices, f"one of {', '.join(choices)}"
        elif one.type in _RULES:
            test, rule = _RULES[one.type]
            holds = test(value)
        elif isinstance(one.type, type):
            holds, rule = isinstance(value, one.type), "a table of settings"
        else:  # its owner checks it
            continue
        if not holds:
            plain = isinstance(one.default, int | float) or get_origin(one.type) is Literal
            hint = f"The default is {one.default}." if plain else "Leave it out for the default."
            refuse(f"{path}{one.name} must be {rule}", hint)


def merged(part: Any, changes: Mapping[str, Any], path: str) -> Any:
    """Return a copy of a part with settings changed that are named `name` or `part__name`.

    A mapping changes what it names in the part, or the rules, that stand there.
    """
    given: dict[str, Any] = {}
    for key, value in changes.items():
        name, *inner = re.split(r"__|\.", key, maxsplit=1)
        new = {inner[0]: value} if inner else value
        if name in given:
            if not (isinstance(new, Mapping) and isinstance(given[name], Mapping)):
                refuse(f"{path}{name} is given twice", "As a whole, or setting by setting.")
            new = {**given[name], **new}
        given[name] = new
    known = {one.name for one in fields(part)}
    for name, value in given.items():
        if name not in known:
            _unknown(part, path, name)
        current = getattr(part, name)
        if isinstance(value, Mapping) and isinstance(current, Mapping):
            given[name] = {**current, **value}
        elif isinstance(value, Mapping) and is_dataclass(current):
            given[name] = merged(current, value, f"{path}{name}.")
    return replace(part, **given)


def frozen(value: Any) -> Any:
    """Make a set of what a file gives as a list; anything else is left to the check."""
    if not isinstance(value, list | tuple | set):
        return value
    try:
        return frozenset(tuple(item) if isinstance(item, list) else item for item in value)
    except TypeError:
        return value


def _names(part: Any) -> Iterator[str]:
    for one in fields(part):
        yield one.name
        if is_dataclass(value := getattr(part, one.name)):
            yield from (f"{one.name}.{inner}" for inner in _names(value))


def _unknown(part: Any, path: str, name: str) -> NoReturn:
    from difflib import get_close_matches

    near = get_close_matches(name, list(_names(part)), cutoff=0.5)
    hint = (
        f"The nearest: {', '.join(path + other for other in near)}."
        if near
        else f"There are {', '.join(one.name for one in fields(part))}."
    )
    refuse(f"no setting {path}{name}", hint)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _texts(value: Any, kind: type[frozenset[Any] | tuple[Any, ...]]) -> bool:
    return isinstance(value, kind) and all(isinstance(item, str) for item in value)


def _pairs(value: Any) -> bool:
    return isinstance(value, frozenset) and all(
        _texts(pair, tuple) and len(pair) == 2  # noqa: PLR2004
        for pair in value
    )


# By the type of a setting: what it may hold, and how the rule is told.
_RULES: dict[Any, tuple[Callable[[Any], bool], str]] = {
    int: (lambda v: _whole(v) and v >= 0, "a whole number, 0 or more"),
    int | None: (lambda v: v is None or (_whole(v) and v >= 1), "a whole number, 1 or more"),
    float: (lambda v: (_whole(v) or isinstance(v, float)) and 0 <= v <= 1, "a share from 0 to 1"),
    bool | None: (lambda v: v is None or isinstance(v, bool), "true or false"),
    bool: (lambda v: isinstance(v, bool), "true or false"),
    str: (lambda v: isinstance(v, str), "a text"),
    tuple[str, ...]: (lambda v: _texts(v, tuple), "a list of names"),
    frozenset[str]: (lambda v: _texts(v, frozenset), "a list of names"),
    frozenset[str] | None: (lambda v: v is None or _texts(v, frozenset), "a list of names"),
    frozenset[tuple[str, str]]: (_pairs, "a list of pairs, a tool and a key of its input"),
}
