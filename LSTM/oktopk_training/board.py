"""Scalars and histograms for TensorBoard, written by the thread that calls.

tensorboardX's SummaryWriter hands them to a thread of its own. When the disk is full, that thread dies, and whoever
adds more, or closes the writer, waits for it for ever. So we use the layer below it.
"""

import logging
import time

import numpy as np
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import histogram, scalar

log = logging.getLogger("oktopk")

_FLUSH_SECONDS = 10  # how far the file on disk may lag behind
_EDGES = np.logspace(-12, 39, 1200)  # of a histogram's bins: any float32 lies below the last
_BINS = np.concatenate([-_EDGES[::-1], [0], _EDGES])


class Board:
    """An event file below `folder`. If it cannot be written, that is said once, and the rest is dropped."""

    def __init__(self, folder, first=0):
        """A run that goes on from step `first` takes back what it had written of later ones."""
        self._writer, self._flushed = EventsWriter(str(folder / "events")), time.monotonic()
        self._folder = folder
        if first:
            start = Event(wall_time=time.time(), step=first, session_log=SessionLog(status=SessionLog.START))
            self._guarded(lambda: self._append(start))

    def scalar(self, name, value, step):
        self._write(scalar(name, value), step)

    def histogram(self, name, values, step):
        if values.size:
            self._write(histogram(name, values, _BINS), step)

    def close(self):
        self._guarded(lambda: self._writer.close())

    def _write(self, summary, step):
        self._guarded(lambda: self._append(Event(wall_time=time.time(), step=step, summary=summary)))

    def _append(self, event):
        self._writer.write_event(event)
        if time.monotonic() > self._flushed + _FLUSH_SECONDS:
            self._writer.flush()
            self._flushed = time.monotonic()

    def _guarded(self, action):
        if self._writer is None:
            return
        try:
            action()
        except OSError as error:
            self._writer = None
            log.warning("%s: nothing more is written for TensorBoard: %s", self._folder, error.strerror or error)
