"""H.264 videos whose frame n has the time n / fps: encoding, lossless joining, and decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import ColorRange, Colorspace, VideoReformatter

KEY_FRAME_EVERY = 4
# Without B-frames, packets are stored in the order of display, so that episodes can be joined by
# shifting their times.
ENCODER_OPTIONS = {"crf": "18", "preset": "fast", "bf": "0", "g": str(KEY_FRAME_EVERY)}
# H.273 code point of the BT.601 matrix, written into the stream so that no decoder has to guess
BT601 = 6
LARGEST_BLOCK = 128
"""Pixels of the largest blocks that codecs divide pictures into."""
# From av 17 on, colours are converted by one thread per core, which is ten times slower than one
# thread for small pictures.
ONE_THREAD: dict[str, Any] = {"threads": 1} if int(av.__version__.split(".")[0]) >= 17 else {}


def encode_video(path: Path, frames: np.ndarray, rate: Fraction) -> None:
    """Write frames (T, H, W, 3) uint8 as H.264, yuv420p; the first frame is a key frame."""
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=rate, options=ENCODER_OPTIONS)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        context = stream.codec_context
        context.time_base = 1 / rate
        context.colorspace, context.color_range = BT601, ColorRange.MPEG
        # one thread, since many processes write episodes at the same time
        context.thread_count = 1
        converter = VideoReformatter()
        for number, pixels in enumerate(frames):
            rgb = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            frame = converter.reformat(
                rgb,
                format="yuv420p",
                dst_colorspace=Colorspace.ITU601,
                dst_color_range=ColorRange.MPEG,
                **ONE_THREAD,
            )
            frame.pts, frame.time_base = number, 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def join_videos(paths: Sequence[Path], out: Path, rate: Fraction) -> None:
    """Join videos of `encode_video` by copying packets; frame n of the result is at n / fps."""
    # An MP4's clock ticks an integer number of times per second: `numerator` times, and a frame
    # lasts `denominator` ticks.
    tick, ticks_per_frame = Fraction(1, rate.numerator), rate.denominator
    with av.open(str(out), "w", format="mp4", options={"movflags": "faststart"}) as container:
        with av.open(str(paths[0])) as source:
            target: Any = container.add_stream_from_template(source.streams.video[0])
            target.time_base = tick
            headers = source.streams.video[0].codec_context.extradata or b""
        for number, packet in enumerate(_packets(paths, headers)):
            packet.stream, packet.time_base = target, tick
            packet.pts = packet.dts = number * ticks_per_frame
            packet.duration = ticks_per_frame
            container.mux(packet)


def _packets(paths: Sequence[Path], headers: bytes) -> Iterator[Any]:
    """Yield the packets of all videos, which must have equal headers."""
    for path in paths:
        with av.open(str(path)) as source:
            stream = source.streams.video[0]
            if (stream.codec_context.extradata or b"") != headers:
                raise ValueError(
                    f"{path} was encoded with other settings than {paths[0]} (another version of "
                    "av or x264?), so they cannot be joined without loss; delete the folder "
                    f"{path.parent} and record that episode again"
                )
            for packet in source.demux(stream):
                if packet.size:  # the demuxer ends with an empty one
                    yield packet


def decode_video(
    path: Path, rate: Fraction, first: int, length: int, size: tuple[int, int]
) -> Iterator[np.ndarray]:
    """Yield frames first .. first + length - 1 of an MP4 file, (H, W, 3) uint8.

    `size` is the (height, width) that they must have, which is checked before any is decoded.
    """
    done = 0
    converter = VideoReformatter()
    try:
        with _open_mp4(path) as container:
            for frame in _frames_from(container, path, rate, first, size):
                yield converter.reformat(frame, format="rgb24", **ONE_THREAD).to_ndarray()
                done += 1
                if done == length:
                    return
    except av.FFmpegError as error:
        raise ValueError(f"{path} is damaged ({error}); copy the dataset again") from error
    raise ValueError(
        f"{path}: expected {length} frames from frame {first} on, got {done}; the file is cut "
        "short: copy the dataset again"
    )


def check_video(path: Path, size: tuple[int, int]) -> None:
    """Compare the (height, width) in the header of an MP4 file with the announced one."""
    try:
        with _open_mp4(path) as container:
            _stream(container, path, size)
    except av.FFmpegError as error:
        raise ValueError(f"{path} is damaged ({error}); copy the dataset again") from error


def _open_mp4(path: Path) -> Any:
    """Open an MP4 file, and no other format, which could name other files or addresses."""
    return av.open(
        str(path.resolve()),
        format="mp4",
        options={"protocol_whitelist": "file"},
        metadata_errors="ignore",
    )


def _stream(container: Any, path: Path, size: tuple[int, int]) -> Any:
    """Return the video in a file, after comparing the size in its header."""
    if not container.streams.video:
        raise ValueError(f"{path} is damaged: it holds no video; copy the dataset again")
    stream = container.streams.video[0]
    _check_size(path, (stream.codec_context.height, stream.codec_context.width), size)
    return stream


def _frames_from(
    container: Any, path: Path, rate: Fraction, first: int, size: tuple[int, int]
) -> Iterator[av.VideoFrame]:
    """Yield the frames of a video from number `first` on, and check that none is missing."""
    stream = _stream(container, path, size)
    # Pictures inside may have other sizes than the header says; codecs round up to blocks.
    stream.codec_context.options = {
        "max_pixels": str((size[0] + LARGEST_BLOCK) * (size[1] + LARGEST_BLOCK))
    }
    # one thread, since several threads read episodes at the same time
    stream.codec_context.thread_count = 1
    container.seek(round(first / rate / stream.time_base), stream=stream, backward=True)
    expected = first
    for frame in container.decode(stream):
        if frame.pts is None:
            raise ValueError(
                f"{path}: a frame has no time stamp; expected frame n at n / {float(rate):g} "
                "seconds"
            )
        number = round(frame.pts * stream.time_base * rate)
        if number < first:
            continue
        if number != expected:
            raise ValueError(
                f"{path}: expected frame {expected}, got frame {number}; the video is damaged"
            )
        # the decoder fills in missing parts of a file that was cut short
        if frame.is_corrupt:
            raise ValueError(f"{path}: frame {number} is damaged; copy the dataset again")
        _check_size(path, (frame.height, frame.width), size)
        yield frame
        expected += 1


def _check_size(path: Path, found: tuple[int, int], expected: tuple[int, int]) -> None:
    if found != expected:
        raise ValueError(
            f"{path}: expected pictures of {expected[0]} x {expected[1]} pixels, as the dataset "
            f"announces, got {found[0]} x {found[1]}; copy the dataset again"
        )


def video_info(path: Path, fps: float) -> dict[str, Any]:
    """Return the entry of a video feature in meta/info.json."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        return {
            "video.height": stream.height,
            "video.width": stream.width,
            "video.codec": stream.codec.canonical_name,
            "video.pix_fmt": stream.pix_fmt,
            "video.is_depth_map": False,
            "video.fps": fps,
            "video.channels": 3,
            "has_audio": False,
        }
