"""The part of a step that a timeline shows."""

from dataclasses import dataclass

MAX_ZOOM = 1024.0


@dataclass(frozen=True, slots=True)
class Viewport:
    """``[left, left + 1/zoom)`` of the step, as fractions, so that it stays the same from step to step."""

    left: float = 0.0
    zoom: float = 1.0

    @property
    def width(self) -> float:
        return 1 / self.zoom

    def bounds_ns(self, step_ns: int) -> tuple[float, float]:
        """Return the viewport in ns from the step's start."""
        return self.left * step_ns, (self.left + self.width) * step_ns

    def zoomed(self, factor: float, anchor: float = 0.5) -> "Viewport":
        """Zoom in by ``factor``; the position ``anchor`` of the viewport stays there."""
        zoom = min(MAX_ZOOM, max(1.0, self.zoom * factor))
        return _clamped(self.left + anchor * (self.width - 1 / zoom), zoom)

    def panned(self, share: float) -> "Viewport":
        """Move right by this share of its width."""
        return _clamped(self.left + share * self.width, self.zoom)

    def showing(self, at: float) -> "Viewport":
        """Center this position if it is not visible."""
        off = (at - self.left) / self.width
        return self if 0 <= off < 1 else self.panned(off - 0.5)

    @classmethod
    def around(cls, start: float, end: float) -> "Viewport":
        """Return a viewport of ``[start, end)`` of the step, with the same length on each side."""
        length = 3 * max(end - start, 1e-9)
        zoom = min(MAX_ZOOM, max(1.0, 1 / length))
        return _clamped((start + end) / 2 - 0.5 / zoom, zoom)


def _clamped(left: float, zoom: float) -> Viewport:
    return Viewport(min(max(left, 0.0), 1 - 1 / zoom), zoom)


WHOLE_STEP = Viewport()
