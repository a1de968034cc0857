"""The task of the Penn Treebank: cross entropy over parallel streams of words."""

import hashlib
import math
from collections import Counter

import torch
import torch.nn.functional as F

from ..task import Task
from .model import LSTMPTB
from .text import load_ptb, streams, windows

_DECAY = 0.1
_DECAY_EPOCHS = (20, 40, 60)  # the learning rate is multiplied by _DECAY at the start of each


class LanguageTask(Task):
    name = "lstm"
    dataset = "ptb"
    data_dir = "ptb_data"
    data_source = "name the folder that holds ptb.train.txt, ptb.valid.txt and ptb.test.txt"
    hidden_size, hidden_layers = 1500, 2
    max_grad_norm = 0.25
    model = LSTMPTB
    figures = {"perplexity": "perplexity"}  # noqa: RUF012 - never changed
    headline = "perplexity"

    def __init__(self, options, rank=0, size=1):
        super().__init__(options, rank, size)
        batch = options.batch_size
        self.vocabulary, texts = load_ptb(options.data_dir)
        train = streams(texts["train"], batch * size, "ptb.train.txt")
        self.train_streams = train[:, rank * batch : (rank + 1) * batch]
        self.val_streams = streams(texts["valid"], batch, "ptb.valid.txt")[:, rank::size]
        self.steps_per_epoch = sum(1 for _ in windows(self.train_streams))
        self.size_of_data = f"{len(texts['train'])} training and {len(texts['valid'])} validation words"
        self.fingerprint = hashlib.sha256(torch.cat([texts["train"], texts["valid"]]).numpy()).hexdigest()
        self._state = None

    def build(self):
        return LSTMPTB(len(self.vocabulary), self.options.hidden_size, self.options.hidden_layers)

    def learning_rate(self, base, epoch):
        return base * _DECAY ** sum(epoch >= start for start in _DECAY_EPOCHS)

    def batches(self, epoch, first=0):
        """The text in order, the same each epoch: the model's state runs on from one batch to the next."""
        self._state = None
        return windows(self.train_streams, first)

    def state_dict(self):
        return {} if self._state is None else {"hidden": [part.clone() for part in self._state]}

    def load_state_dict(self, state):
        hidden = tuple(part.to(self.options.torch_device) for part in state.get("hidden", ()))
        shape = (self.options.hidden_layers, self.options.batch_size, self.options.hidden_size)
        if hidden and [part.shape for part in hidden] != [shape] * 2:
            raise ValueError("its hidden state is that of another model")
        self._state = hidden or None

    def loss(self, net, batch):
        """The mean over words; none of them can be infinite."""
        loss, self._state = self._loss(net, batch, self._state)
        return loss, 0

    def _loss(self, net, batch, state):
        words, targets = (part.to(self.options.torch_device) for part in batch)
        scores, state = net(words, state)
        return F.cross_entropy(scores.flatten(0, 1).float(), targets.flatten()), tuple(s.detach() for s in state)

    @torch.no_grad()
    def validate(self, net):
        net.eval()
        totals, state = Counter(), None
        for batch in windows(self.val_streams) if self.val_streams.numel() else ():
            loss, state = self._loss(net, batch, state)
            totals.update(words=batch[1].numel(), loss=loss.item() * batch[1].numel())
        return totals

    def summarise(self, totals):
        loss = totals["loss"] / totals["words"]
        perplexity = math.exp(loss) if loss < math.log(1e300) else math.inf
        return {"loss": loss, "perplexity": perplexity}
