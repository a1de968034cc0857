"""Judge a saved model: python scripts/evaluate.py MODEL MANIFEST [--pairs N]"""

import _project  # noqa: F401 - for the modules of LSTM/

if __name__ == "__main__":
    from oktopk_training.job import begin

    begin()

import sys
from itertools import islice

import torch

from oktopk.fields import COUNT, NATURAL, PATH
from oktopk_training.command_line import Parser, reading
from oktopk_training.errors import UserError
from oktopk_training.job import program
from oktopk_training.options import DEVICE, choose_device
from oktopk_training.run_log import start_logging
from oktopk_training.saved_models import build_model, read_model
from oktopk_training.tasks.speech.manifest import load_manifest
from oktopk_training.tasks.speech.task import SpeechTask, batches_by_length, error_figures, total_errors, transcribe


@program
def main(arguments=None):
    options = _parser().parse_args(arguments)
    start_logging()
    content = read_model(options.model)
    if content["dnn"] != SpeechTask.name:
        raise UserError(f"{options.model} is a model of {content['dnn']}, which does not transcribe speech")
    utterances = load_manifest(options.manifest)
    device = torch.device(choose_device(options.device))
    net = build_model(content, options.model).to(device)
    transcribed = list(transcribe(net, batches_by_length(utterances, options.batch_size), device))
    sys.stdout.write(_report(transcribed, options.pairs))


def _report(transcribed, pairs):
    figures = error_figures(total_errors(transcribed))
    lines = [
        f"{len(transcribed)} utterances",
        f"WER {figures['wer']:.4f}    mean over utterances {figures['wer_mean']:.4f}",
        f"CER {figures['cer']:.4f}",
        f"loss {figures['loss']:.4f}",
    ]
    step = max(1, len(transcribed) // pairs) if pairs else 1  # short and long ones alike: they come ordered by length
    for _, reference, hypothesis in islice(transcribed[::step], pairs):
        lines += ["", f"reference   {reference}", f"hypothesis  {hypothesis}"]
    return "\n".join(lines) + "\n"


def _parser():
    parser = Parser(description="Print the WER and CER of a saved model on a manifest, and some of its transcripts.")
    parser.add_argument("model", type=reading(PATH), help="such as runs/.../checkpoints/best.pt")
    parser.add_argument("manifest", type=reading(PATH), help="such as audio_data/an4_val_manifest.csv")
    parser.add_argument(
        "--pairs", type=reading(NATURAL), default=5, metavar="N", help="transcripts to show beside what was said"
    )
    parser.add_argument("--batch-size", type=reading(COUNT), default=8, metavar="N", help="utterances at a time")
    parser.add_argument(
        "--device", type=reading(DEVICE), default="auto", metavar=DEVICE.metavar, help="where the model computes"
    )
    return parser


if __name__ == "__main__":
    main()
