"""AN4: recordings in, spoken text out, learnt with CTC."""

from .task import SpeechTask as TASK

__all__ = ["TASK"]
