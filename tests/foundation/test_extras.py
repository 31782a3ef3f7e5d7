"""What is said of packages that are not installed."""

import pytest

from ramerge.core.foundation import extras


@pytest.mark.parametrize(
    ("absent", "text"),
    [
        ([], []),
        (["a"], ["prompts need a, which is not installed: pip install 'ramerge[one]'"]),
        (["a", "b_c"], ["prompts need a and b-c, which are not installed: pip install 'ramerge[one]'"]),
        (["a", "d"], ["prompts need a and d, which are not installed: pip install 'ramerge[one,two]'"]),
    ],
)
def test_what_is_missing_is_named_with_one_command(
    absent: list[str], text: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in absent else object())
    assert extras.missing({"one": ["a", "b_c"], "two": ["d"]}, who="prompts need") == text
    then = extras.missing({"one": ["a", "b_c"]}, who="it needs", then="pip install more")
    assert not then or then[0].endswith("'ramerge[one]' && pip install more")
