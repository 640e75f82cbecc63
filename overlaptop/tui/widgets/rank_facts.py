"""Who a rank is and the figures of its newest measured step."""

from __future__ import annotations

from overlaptop.tui.choosing import idle_ns
from overlaptop.tui.columns import Scales
from overlaptop.tui.drawing import stacked_bar
from overlaptop.tui.ink import BOLD, DIM, Ink, Item, Line, Run, fit, wrap
from overlaptop.tui.parts import PARTS, parts_of
from overlaptop.tui.text import UNKNOWN, age, byte_count, count, duration, percent
from overlaptop.tui.widgets.line_view import LineView
from overlaptop.tui.widgets.totals_line import overlap_ink


class RankFacts(LineView):
    """Identity, then the step's parts, then the bar they make."""

    def draw(self, width: int, height: int) -> list[Line]:
        """As many of the lines as fit, the bar last."""
        chosen = self.state.chosen
        if chosen is None:
            return [(Run(" no rank to show", DIM),)]
        info, measured = chosen.info, chosen.measured
        left = [Item((Run(f" rank {chosen.rank}", BOLD),))]
        if info is not None:
            for name, value in (
                ("host", info.host), ("device", info.device), ("backend", info.backend),
                ("pid", str(info.pid)), ("local rank", str(info.local_rank)), ("torch", info.torch_version),
            ):  # fmt: skip
                if value:
                    left.append(Item((Run(f"{name} ", DIM), Run(value)), len(left)))
        news = f"newest step {age(chosen.age_s)} ago " if chosen.age_s is not None else "no step yet "
        if chosen.ended:
            news = "■ ended "
        elif chosen.stale:
            news = f"○ stale: {news}"
        right = [Item((Run(news, Ink("warning") if chosen.stale else DIM),), 3)]
        lines = [fit(left, right, width)]
        if measured is None:
            return [*lines, (Run(" no measured step yet", DIM),)]
        overlap = Run(percent(measured.overlap), overlap_ink(measured.overlap, bold=True))
        step = Run(count(measured.step), BOLD)
        parts = [Item((Run("measured step ", DIM), step, Run("  overlap ", DIM), overlap))]
        for key, value_ns in parts_of(measured):
            known = value_ns if key != "idle" else idle_ns(chosen)
            share = (
                UNKNOWN
                if known is None
                else percent(known / measured.step_ns if measured.step_ns else None)
            )
            glyph = PARTS[key].texture if self.state.textured else "█"
            figures = Run(duration(known), BOLD if known else DIM)
            parts.append(Item((Run(f"{glyph} ", Ink(key)), Run(f"{PARTS[key].word} ", DIM), figures,
                               Run(f" {share}" if known else "", DIM))))  # fmt: skip
        parts.append(Item((Run("stall ", DIM), Run(duration(measured.stall_ns), BOLD))))
        parts.append(Item((Run("collectives ", DIM), Run(count(measured.collectives), BOLD),
                           Run(f" {byte_count(measured.comm_bytes)}", DIM))))  # fmt: skip
        parts.append(
            Item(
                (
                    Run("dropped ", DIM),
                    Run(count(chosen.dropped), Ink("warning") if chosen.dropped else DIM),
                )
            )
        )
        lines += [(Run(" "), *line) for line in wrap(parts, width - 1, max(1, height - 2))]
        scales = Scales.of(self.state)
        bar = stacked_bar(parts_of(measured), measured.step_ns, width - 2, textured=scales.textured)
        return [*lines, (Run(" "), *bar)]
