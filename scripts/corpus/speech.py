"""Speech synthesis with libespeak-ng, such that what is said does not depend on what was said before.

libespeak-ng carries state from one utterance to the next (even through espeak_Terminate), and seeds its random numbers
from the clock. So it lives in a process of its own, which initialises it once, with a fixed seed, and speaks each
utterance in a fresh fork of that first state.

This file is both sides: `Speaker` starts it as a program, which therefore imports nothing but the standard library
and the loader (a fork of a process with threads, as NumPy starts them, is not safe).
"""

import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

SAMPLE_RATE = 22050  # Hz; fixed by espeak-ng's voices

# From espeak-ng's speak_lib.h, version 1.52.
AUDIO_OUTPUT_SYNCHRONOUS = 2
INITIALIZE_DONT_EXIT = 0x8000
CHARS_UTF8 = 1
PARAMETER_RATE, PARAMETER_PITCH, PARAMETER_RANGE = 1, 3, 4
SAMPLES_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)

ESPEAK_SEED = 1


class SpeechError(Exception):
    """Speech synthesis is not to be had here; the message says what is missing."""


class Speaker:
    """The speaking process, for the length of a `with` block."""

    def __enter__(self):
        self._process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def say(self, text, voice, rate, pitch, pitch_range):
        """16-bit little-endian mono PCM at SAMPLE_RATE.

        `rate` in words a minute; `pitch` and `pitch_range` from 0 to 99, 50 being the voice's own.
        """
        request = {"text": text, "voice": voice, "rate": rate, "pitch": pitch, "pitch_range": pitch_range}
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise SpeechError("speech synthesis did not start: see the message above.") from None
        pcm = _read_block(self._process.stdout)
        if not pcm:
            raise SpeechError(f"espeak-ng said nothing to {request}.")
        return pcm


def serve():
    """Answer each request, a line of JSON, with one block of PCM, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the other side closes our input
    with tempfile.TemporaryDirectory() as folder:
        espeak = _load_espeak(Path(folder))
        for line in sys.stdin.buffer:
            child = os.fork()
            if child == 0:
                _speak_and_exit(espeak, json.loads(line))
            if os.waitpid(child, 0)[1] != 0:
                sys.exit("speech synthesis failed")


def _load_espeak(folder):
    import espeakng_loader

    # libespeak-ng cuts the path of its data at 160 characters, which an environment in a deep folder exceeds.
    data = folder / "espeak-ng-data"
    data.symlink_to(espeakng_loader.get_data_path())
    espeak = ctypes.CDLL(espeakng_loader.get_library_path())
    rate = espeak.espeak_Initialize(AUDIO_OUTPUT_SYNCHRONOUS, 0, str(data).encode(), INITIALIZE_DONT_EXIT)
    if rate != SAMPLE_RATE:
        sys.exit(f"espeak-ng does not start: espeak_Initialize returned {rate}")
    espeak.espeak_ng_SetRandSeed(ctypes.c_long(ESPEAK_SEED))
    ctypes.CDLL(None).srand(ESPEAK_SEED)
    return espeak


def _speak_and_exit(espeak, request):
    blocks = []

    @SAMPLES_CALLBACK
    def keep(samples, count, _events):
        if samples and count > 0:
            blocks.append(ctypes.string_at(samples, count * ctypes.sizeof(ctypes.c_short)))
        return 0

    espeak.espeak_SetSynthCallback(keep)
    status = espeak.espeak_SetVoiceByName(request["voice"].encode())
    for parameter, value in (
        (PARAMETER_RATE, request["rate"]),
        (PARAMETER_PITCH, request["pitch"]),
        (PARAMETER_RANGE, request["pitch_range"]),
    ):
        status = status or espeak.espeak_SetParameter(parameter, value, 0)
    text = request["text"].encode() + b"\0"
    status = status or espeak.espeak_Synth(text, ctypes.c_size_t(len(text)), 0, 1, 0, CHARS_UTF8, None, None)
    _write_block(sys.stdout.buffer, b"" if status else b"".join(blocks))
    os._exit(0)  # no clean-up of what belongs to the process that was forked


BLOCK_LENGTH = struct.Struct("<I")


def _write_block(stream, payload):
    stream.write(BLOCK_LENGTH.pack(len(payload)) + payload)
    stream.flush()


def _read_block(stream):
    header = stream.read(BLOCK_LENGTH.size)
    return stream.read(*BLOCK_LENGTH.unpack(header)) if len(header) == BLOCK_LENGTH.size else b""


if __name__ == "__main__":
    serve()
