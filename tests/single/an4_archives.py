"""Small archives in the layout of CMU's an4_sphere.tar.gz, for tests."""

import io
import tarfile

import numpy as np

SPHERE_HEADER_BYTES = 1024


def sphere(samples, byte_order="01", promised=None):
    """A NIST SPHERE file; "01" is little-endian, "10" big-endian."""
    fields = [
        "NIST_1A",
        f"{SPHERE_HEADER_BYTES:7d}",
        f"sample_count -i {len(samples) if promised is None else promised}",
        "sample_n_bytes -i 2",
        "channel_count -i 1",
        f"sample_byte_format -s2 {byte_order}",
        "sample_rate -i 16000",
        "sample_coding -s3 pcm",
        "end_head\n",
    ]
    header = "\n".join(fields).encode().ljust(SPHERE_HEADER_BYTES)
    return header + np.asarray(samples).astype("<i2" if byte_order == "01" else ">i2").tobytes()


def tone(seed, count=4000):
    return np.random.default_rng(seed).integers(-3000, 3000, count)


TRAIN = {"an251-fash-b": "YES", "cen1-fash-b": "R A N D Y", "an3-mblw-b": "ENTER SIX"}
TEST = {"an391-mjwl-b": "RUBOUT G M E F THREE NINE"}


def members(train=TRAIN, test=TEST, sounds=None):
    """Name -> content of a sound little archive; `sounds` maps an utterance to its samples."""
    sounds = sounds or {name: tone(seed) for seed, name in enumerate([*train, *test])}
    files = {
        "an4/etc/an4_train.transcription": "".join(f"<s> {words} </s> ({name})\n" for name, words in train.items()),
        "an4/etc/an4_test.transcription": "".join(f"{words} ({name})\n" for name, words in test.items()),
    }
    files = {name: content.encode() for name, content in files.items()}
    for folder, names in (("an4_clstk", train), ("an4test_clstk", test)):
        for name in names:
            files[f"an4/wav/{folder}/{name.split('-')[1]}/{name}.sph"] = sphere(sounds[name])
    return files


def write_archive(path, files, extra=(), mode="w:gz"):
    """`extra` are ready TarInfo objects without content: links, devices."""
    with tarfile.open(path, mode) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for info in extra:
            tar.addfile(info)
    return path
