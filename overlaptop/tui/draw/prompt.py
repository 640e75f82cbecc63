"""Prompt: what keys go to while it is on the screen. No input widget in it, which takes long to import."""

from __future__ import annotations

from textual import events
from textual.widget import Widget


class Prompt(Widget):
    """A question, or fields to type in, at the foot of a screen."""

    DEFAULT_CSS = "Prompt { width: 100%; background: $background; }"

    async def press(self, key: events.Key) -> bool:
        """Take a key before any binding; returns whether that was all that it is for, as with text."""
        raise NotImplementedError

    def take_focus(self) -> None:
        """Have the bindings of what is typed in come first, at once: `focus` waits for other messages."""
        raise NotImplementedError
