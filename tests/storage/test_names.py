"""What may name a session."""

import re

import pytest

from compactor.storage import BadName, check_name, export_name, new_name


@pytest.mark.parametrize(
    "name", ["a", "7", "fix-auth", "a.b_c-d", "x" * 64, "console", "com10", "a.con"]
)
def test_good_names_pass(name: str) -> None:
    """A name that follows the rules comes back as it is."""
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("", "A", "a b", "é", "-a", "a-", ".a", "a.", "_a", "a_", "a..b", "x" * 65, "a\n"),
        *("a/b", "..", "a\\b", "a\0b", "con", "con.txt", "aux.tar.gz", "com1", "lpt9.x", "nul"),
    ],
)
def test_bad_names_are_refused_with_a_hint(name: str) -> None:
    """Anything that could be a path, a device or a hidden file is refused, also as ValueError."""
    with pytest.raises(BadName) as caught:
        check_name(name)
    assert isinstance(caught.value, ValueError)
    assert caught.value.hint


def test_new_names_are_valid_and_distinct() -> None:
    """A made name follows the rules and does not come twice."""
    names = {check_name(new_name()) for _ in range(100)}
    assert len(names) == 100


def test_export_names_differ_wherever_the_texts_do() -> None:
    """Paths, devices, case, controls, unicode and length: each its own valid name."""
    texts = [
        *("", ".", "..", "../x", "/x", "x", "X", "x.", "x..", "x ", " x", "x\0", "x\n", "\x1b[2J"),
        *("a.b", "a_b", "a-b", "a/b", "a\\b", "a:b", "A.B", "con", "CON", "con.txt", "nul", "com1"),
        *(
            "é",
            "e\u0301",
            "É",
            "日本",
            "\udcff",
            "\u202e",
            "x" * 64,
            "x" * 65,
            "x" * 2_000,
            "~",
            "x~",
        ),
        *("y" * 2_000 + "1", "y" * 2_000 + "2"),
    ]
    texts += [export_name(text) for text in texts if export_name(text) not in texts]
    names = [export_name(text) for text in texts]
    assert names == [export_name(text) for text in texts]
    assert len({name.lower() for name in names}) == len(texts)
    for name in names:
        assert re.fullmatch(r"[a-z0-9][a-z0-9._~-]*[a-z0-9]|[a-z0-9]", name)
        assert len(name) <= 100
        assert name.split(".")[0] not in {"con", "nul", "com1"}


def test_a_session_exports_under_its_own_name() -> None:
    """What can name a session is a file name already."""
    for name in ("fix-auth.2", "a_b", "a.b", "x" * 64):
        assert export_name(name) == name
