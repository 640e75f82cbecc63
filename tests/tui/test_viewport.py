import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.tui.timeline.viewport import MAX_ZOOM, WHOLE_STEP, Viewport

moves = st.lists(
    st.one_of(
        st.tuples(st.just("zoom"), st.floats(0.1, 10), st.floats(0, 1)),
        st.tuples(st.just("pan"), st.floats(-3, 3), st.just(0.0)),
    )
)


@given(moves)
def test_a_window_never_leaves_the_step(steps):
    viewport = WHOLE_STEP
    for kind, amount, anchor in steps:
        viewport = viewport.zoomed(amount, anchor) if kind == "zoom" else viewport.panned(amount)
        assert 1 <= viewport.zoom <= MAX_ZOOM
        assert 0 <= viewport.left <= viewport.left + viewport.width <= 1 + 1e-9


def test_what_is_under_the_pointer_stays_there():
    before = Viewport(0.2, 4)
    after = before.zoomed(2, anchor=0.25)
    assert after.left + 0.25 * after.width == pytest.approx(before.left + 0.25 * before.width)


def test_a_window_around_a_collective_holds_it_in_its_middle():
    viewport = Viewport.around(0.5, 0.6, margin=1)
    assert (viewport.left, viewport.width) == (pytest.approx(0.4), pytest.approx(0.3))
