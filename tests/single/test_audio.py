"""Features as librosa has them, and augmentation that changes what it should."""

import threading

import librosa
import numpy as np
import pytest
import soundfile
import torch

from corpora import tone
from oktopk_training.errors import UserError
from oktopk_training.tasks.speech import audio
from oktopk_training.tasks.speech.batches import collate, prefetch
from oktopk_training.tasks.speech.noise import load_noises


@pytest.mark.filterwarnings("ignore:n_fft=:UserWarning")  # librosa, of very short signals
@pytest.mark.parametrize("samples", [16_000, 7_999, 481, 161, 1])
@pytest.mark.parametrize("hop", [160, 137, 184])
def test_spectra_agree_with_librosa(samples, hop):
    wave = np.random.default_rng(samples).normal(0, 0.3, samples).astype(np.float32)
    theirs = np.abs(librosa.stft(wave, n_fft=320, hop_length=hop, win_length=320, window="hamming"))
    ours = audio.magnitudes(wave, hop).numpy()
    assert ours.shape == theirs.shape == (161, audio.frame_count(samples, hop))
    assert np.abs(ours - theirs).max() <= 1e-4
    assert np.abs(np.log1p(ours) - np.log1p(theirs)).max() <= 1e-4


def test_a_spectrogram_has_mean_0_and_variance_1_over_the_utterance():
    spectrogram = audio.spectrogram(tone(1.0))
    assert spectrogram.mean().item() == pytest.approx(0, abs=1e-5)
    assert spectrogram.square().mean().item() == pytest.approx(1, abs=1e-4)


def test_silence_gives_zeros_not_nan():
    assert audio.spectrogram(np.zeros(16_000, dtype=np.float32)).count_nonzero() == 0


def test_another_rate_and_two_channels_become_16_khz_mono(tmp_path):
    stereo = np.stack([tone(1.0, 500, rate=8_000), np.zeros(8_000, dtype=np.float32)], axis=1)
    soundfile.write(tmp_path / "a.wav", stereo, 8_000)
    samples = audio.read(tmp_path / "a.wav")
    assert samples.shape == (16_000,)
    assert samples.dtype == np.float32
    assert np.abs(np.fft.rfft(samples)).argmax() == 500  # Hz: the tone is where it was
    assert np.abs(samples[2000:-2000]).max() == pytest.approx(0.15, abs=0.03)


@pytest.mark.parametrize("rate", [8_000, 16_000])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_that_are_no_numbers_are_refused_by_their_name_at_any_rate(value, rate, tmp_path):
    wave = tone(0.1, rate=rate)
    wave[50] = value
    soundfile.write(tmp_path / "a.wav", wave, rate, subtype="FLOAT")
    assert not np.isfinite(audio.read(tmp_path / "a.wav")).all()
    with pytest.raises(UserError, match=r"a\.wav.*huge or not numbers"):
        load_noises(tmp_path)


def test_tempo_changes_the_number_of_frames_and_not_the_pitch():
    wave, random = tone(1.0, 1_000), np.random.default_rng(0)
    pitch = audio.magnitudes(wave).mean(dim=1).argmax()
    frames = set()
    for _ in range(200):
        samples, hop = audio.Augmentation(gain_db=(0.0, 0.0))(wave, random)
        magnitudes = audio.magnitudes(samples, hop)
        assert magnitudes.mean(dim=1).argmax() == pitch
        frames.add(magnitudes.shape[1])
    assert min(frames) == pytest.approx(101 / 1.15, abs=1)
    assert max(frames) == pytest.approx(101 / 0.85, abs=1)


def test_gain_stays_between_minus_6_and_plus_8_db():
    wave, random = tone(0.1), np.random.default_rng(0)
    gains = [20 * np.log10(np.abs(audio.Augmentation()(wave, random)[0] / wave).mean()) for _ in range(300)]
    assert -6.01 < min(gains) < -5.5
    assert 7.5 < max(gains) < 8.01


def test_noise_is_added_as_loud_as_asked_for():
    wave = tone(0.5)
    noise = np.random.default_rng(1).normal(0, 3.0, 1_000).astype(np.float32)  # shorter than the speech: it goes round
    augment = audio.Augmentation((1, 1), (0, 0), (noise,), noise_probability=1.0, noise_level=0.5)
    random = np.random.default_rng(0)
    levels = []
    for _ in range(100):
        added = augment(wave, random)[0] - wave
        levels.append(np.sqrt(np.mean(added**2) / np.mean(wave**2)))
    assert 0 <= min(levels) < 0.1
    assert 0.4 < max(levels) <= 0.51


def test_noise_comes_with_its_probability():
    wave = tone(0.1)
    augment = audio.Augmentation((1, 1), (0, 0), (tone(1.0, 90),), noise_probability=0.25, noise_level=0.5)
    random = np.random.default_rng(0)
    noisy = sum(not np.array_equal(augment(wave, random)[0], wave) for _ in range(400))
    assert 70 < noisy < 130


def test_a_noise_folder_must_hold_recordings(tmp_path):
    with pytest.raises(UserError, match="no recordings"):
        load_noises(tmp_path)
    (tmp_path / "a.wav").write_text("not audio")
    with pytest.raises(UserError, match=r"a\.wav is not audio"):
        load_noises(tmp_path)
    soundfile.write(tmp_path / "a.wav", np.zeros(100), 16_000)
    with pytest.raises(UserError, match="silent"):
        load_noises(tmp_path)
    soundfile.write(tmp_path / "a.wav", np.full(1000, 3e38), 16_000, subtype="FLOAT")
    with pytest.raises(UserError, match="huge or not numbers"):
        load_noises(tmp_path)


def test_collation_pads_with_zeros_and_keeps_the_lengths():
    batch = collate([torch.ones(161, 3), torch.ones(161, 5)], ["GO", "A"])
    assert batch.spectrograms.shape == (2, 161, 16)  # few different shapes: see _FRAME_MULTIPLE
    assert batch.spectrograms[1, :, 5:].count_nonzero() == 0
    assert batch.spectrograms[0, :, 3:].count_nonzero() == 0
    assert batch.frames.tolist() == [3, 5]
    assert batch.labels.tolist() == [8, 16, 2]
    assert batch.label_counts.tolist() == [2, 1]


def test_prefetching_keeps_the_order_and_ends():
    assert list(prefetch(lambda value: value * 2, range(30))) == [value * 2 for value in range(30)]


def test_an_error_in_the_reading_thread_reaches_the_one_who_waits():
    def make(value):
        if value == 3:
            raise OSError("gone")
        return value

    with pytest.raises(OSError, match="gone"):
        list(prefetch(make, range(100)))


def test_whoever_stops_early_leaves_no_thread():

    batches = prefetch(lambda value: value, range(1_000))
    next(batches)
    batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "batches"]
