"""The stretch of a step that a timeline shows."""

from __future__ import annotations

from dataclasses import dataclass

MAX_ZOOM = 1024.0


@dataclass(frozen=True, slots=True)
class Viewport:
    """``[left, left + 1/zoom)`` of the step, as fractions, so that it stays put from step to step."""

    left: float = 0.0
    zoom: float = 1.0

    @property
    def width(self) -> float:
        return 1 / self.zoom

    def bounds_ns(self, step_ns: int) -> tuple[float, float]:
        """The viewport in ns from the step's start."""
        return self.left * step_ns, (self.left + self.width) * step_ns

    def zoomed(self, factor: float, anchor: float = 0.5) -> Viewport:
        """Closer by ``factor``; what lies at the share ``anchor`` of the viewport stays there."""
        zoom = min(MAX_ZOOM, max(1.0, self.zoom * factor))
        return _clamped(self.left + anchor * (self.width - 1 / zoom), zoom)

    def panned(self, share: float) -> Viewport:
        """Moved to the right by that share of itself."""
        return _clamped(self.left + share * self.width, self.zoom)

    def showing(self, at: float) -> Viewport:
        """Moved so that this place of the step is in its middle, where it is not in sight."""
        off = (at - self.left) / self.width
        return self if 0 <= off < 1 else self.panned(off - 0.5)

    @classmethod
    def around(cls, start: float, end: float) -> Viewport:
        """Showing ``[start, end)`` of the step, and as much again on each side."""
        length = 3 * max(end - start, 1e-9)
        zoom = min(MAX_ZOOM, max(1.0, 1 / length))
        return _clamped((start + end) / 2 - 0.5 / zoom, zoom)

    def over(self, start: float, end: float) -> Viewport:
        """Moved so that ``[start, end)`` of the step is in its middle; wider where that does not fit."""
        if end - start > self.width:
            return Viewport.around(start, end)
        return _clamped((start + end - self.width) / 2, self.zoom)


def _clamped(left: float, zoom: float) -> Viewport:
    return Viewport(min(max(left, 0.0), 1 - 1 / zoom), zoom)


WHOLE_STEP = Viewport()
