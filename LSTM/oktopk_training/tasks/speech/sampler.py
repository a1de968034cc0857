"""Which utterances a rank sees at which step: alike in length, different on each rank, in a new order each epoch.

The first epoch goes from short to long (SortaGrad, Deep Speech 2, section 3.3): the summed CTC loss and its gradient
grow with the length, and untrained weights are the easiest to ruin.
"""

import numpy as np

from ...errors import UserError

_JITTER = 0.05  # lengths are blurred by ±5%, so that the same utterances do not always meet


class BucketSampler:
    """Cuts an epoch into global batches of `batch_size * size` utterances of similar length, dealt to the ranks.

    Every rank computes the same plan from (seed, epoch) and takes its own part, so no messages are needed.
    The remainder of n / (batch_size * size) sits out; who that is changes with the epoch.
    """

    def __init__(self, lengths, batch_size, rank=0, size=1, seed=0):
        self.lengths = np.asarray(lengths, dtype=np.float64)
        self.batch_size, self.rank, self.size, self.seed = batch_size, rank, size, seed
        self.global_batch = batch_size * size
        self.steps = len(self.lengths) // self.global_batch
        if self.steps == 0:
            raise UserError(
                f"{len(self.lengths)} training utterances are fewer than the {self.global_batch} of one step "
                f"(--batch-size {batch_size} x {size} ranks); lower one of them"
            )

    def __len__(self):
        return self.steps

    def batches(self, epoch):
        """This rank's batches of utterance indices."""
        random = np.random.default_rng((self.seed, epoch))
        chosen = random.permutation(len(self.lengths))[: self.steps * self.global_batch]
        blurred = self.lengths[chosen] * random.uniform(1 - _JITTER, 1 + _JITTER, len(chosen))
        global_batches = chosen[np.argsort(blurred)].reshape(self.steps, self.global_batch)
        if epoch > 0:
            global_batches = random.permutation(global_batches)
        return [batch[self.rank :: self.size].tolist() for batch in global_batches]
