"""Contact sheets of episodes and captions on frames, drawn with Pillow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

Frame = npt.NDArray[np.uint8]
PAPER, INK, FAINT = (252, 251, 248), (34, 36, 40), (120, 122, 126)
WHITE = (255, 255, 255)
PHASE_COLOURS = {
    "evidence": (214, 120, 32),
    "retention": (110, 116, 124),
    "decision": (190, 38, 60),
    "execution": (36, 110, 168),
}


@dataclass(frozen=True)
class SheetColumn:
    """Moment of an episode: images from top to bottom, a heading and a small line under it."""

    frames: Sequence[Frame]
    heading: str
    caption: str = ""


def contact_sheet(
    columns: Sequence[SheetColumn],
    title: str,
    *,
    subtitle: str = "",
    rows: Sequence[str] = (),
    gap: int = 6,
) -> Frame:
    """Return an image of moments in columns, each with its heading in the colour of its phase.

    `rows` names the images of a column.
    """
    height, width = columns[0].frames[0].shape[:2]
    gap, text = 6, max(11, width // 13)
    margin, head, label = 2 * gap, int(4.6 * text), int(2.6 * text)
    side = int(1.7 * text) if rows else 0
    sheet = Image.new(
        "RGB",
        (
            2 * margin + side + len(columns) * (width + gap) - gap,
            head + label + len(columns[0].frames) * (height + gap) + margin - gap,
        ),
        PAPER,
    )
    draw = ImageDraw.Draw(sheet)
    draw.text((margin, margin), title, INK, _font(int(1.5 * text)))
    draw.text((margin, margin + int(2.0 * text)), subtitle, FAINT, _font(text))
    for number, name in enumerate(rows):
        box = Image.new("RGB", (height, side), PAPER)
        ImageDraw.Draw(box).text((height // 2, 0), name, FAINT, _font(text), anchor="ma")
        sheet.paste(
            box.rotate(90, expand=True), (margin - gap, head + label + number * (height + gap))
        )
    for number, column in enumerate(columns):
        left = margin + side + number * (width + gap)
        colour = PHASE_COLOURS.get(column.heading, INK)
        draw.text((left, head), column.heading, colour, _font(text))
        draw.text((left, head + int(1.2 * text)), column.caption, FAINT, _font(int(0.85 * text)))
        for row, frame in enumerate(column.frames):
            top = head + label + row * (height + gap)
            sheet.paste(Image.fromarray(frame), (left, top))
        draw.rectangle((left, head + label - 4, left + width - 1, head + label - 2), colour)
    return np.asarray(sheet)


def captioned(frame: Frame, left: str, right: str, colour: tuple[int, int, int] = INK) -> Frame:
    """Return a frame under a coloured strip with a word at the left and a clock at the right."""
    height, width = frame.shape[:2]
    strip = max(18, height // 14)
    strip += (strip + height) % 2  # videos need even sizes
    image = Image.new("RGB", (width, height + strip), colour)
    image.paste(Image.fromarray(frame), (0, strip))
    draw, font = ImageDraw.Draw(image), _font(int(0.62 * strip))
    draw.text((strip / 2, strip / 2), left, WHITE, font, anchor="lm")
    draw.text((width - strip / 2, strip / 2), right, WHITE, font, anchor="rm")
    return np.asarray(image)


def shrink(frame: Frame, factor: int) -> Frame:
    """Return the means of blocks of pixels: an image drawn large and shrunk has smooth edges."""
    height, width = frame.shape[0] // factor, frame.shape[1] // factor
    blocks = frame[: height * factor, : width * factor].reshape(height, factor, width, factor, 3)
    return np.asarray(blocks.mean(axis=(1, 3)).round(), np.uint8)


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
