"""Texts that a model may write as arguments: JSON, almost JSON, and anything else."""

import json

from hypothesis import strategies as st

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
argument_texts = (
    st.text(max_size=60)
    | st.text(alphabet='{}[]",:\\u0d8tfn1e-9. ', max_size=40)
    | json_values.map(json.dumps)
    | st.dictionaries(st.sampled_from(["by", "note", "x"]), json_values, max_size=3).map(json.dumps)
)
