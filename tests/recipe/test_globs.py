"""Which rule catches which names: as the rules say one by one, whatever is looked for first."""

from collections import Counter
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramerge.core.recipe import globs
from ramerge.core.recipe.globs import catches_any, first_rules
from ramerge.core.recipe.layers import layer_of, parse_layers
from ramerge.core.recipe.model import Rule

NAMES = [f"model.layers.{layer}.{part}.weight" for layer in range(3) for part in ("mlp.up", "norm", "a[b]")] + ["norm"]
PATTERNS = st.lists(
    st.sampled_from(
        ["*", "?", "[0-1]", "[!0]", "[]]", "[", "]", "norm", "layers.", "mlp", "1", "model.", "a", "weight"]
    ),
    min_size=1,
    max_size=5,
).map("".join)
RULES = st.builds(
    lambda match, layers: Rule(match=match, layers=layers, keep="base"),
    st.lists(PATTERNS, min_size=1, max_size=3),
    st.sampled_from([None, None, "1", "0, 2"]),
)


def catches(rule: Rule, name: str) -> bool:
    if not any(fnmatchcase(name, pattern) for pattern in rule.match):
        return False
    layer = layer_of(name)
    return rule.layers is None or (layer is not None and layer.number in parse_layers(rule.layers))


@given(st.lists(RULES, max_size=6))
def test_the_first_rule_that_catches_a_name(rules: list[Rule]) -> None:
    wanted = {name: next((n for n, rule in enumerate(rules, 1) if catches(rule, name)), 0) for name in NAMES}
    assert first_rules(rules, NAMES) == wanted
    for rule in rules:
        assert catches_any(rule, NAMES) == any(catches(rule, name) for name in NAMES)
        assert [rule.catches(name) for name in NAMES] == [catches(rule, name) for name in NAMES]


def test_many_rules_are_compiled_once_and_rarely_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """fnmatch compiles anew from the 257th pattern on, and most of the time went into patterns that do not match."""
    tried: Counter[str] = Counter()
    real = globs.translate
    monkeypatch.setattr(globs, "translate", lambda pattern: tried.update(["compiled"]) or real(pattern))
    globs._compile_glob.cache_clear()
    rules = [Rule(match=f"*layers*experts.{expert}.*proj*", keep="base") for expert in range(400)]
    names = [f"model.layers.0.experts.{expert}.{part}_proj" for expert in range(400) for part in ("up", "down")]
    assert list(first_rules(rules, names).values()) == [1 + place // 2 for place in range(800)]
    assert tried == {"compiled": 400}
    for pattern in (globs._compile_glob(rule.match[0]) for rule in rules):
        assert pattern.rarest(names[::12]).startswith("experts.")
