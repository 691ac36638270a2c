"""What may name a session."""

import pytest

from compactor.storage import BadName, check_name, new_name


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
