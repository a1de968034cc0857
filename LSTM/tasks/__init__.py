"""What is trained: a task knows its data, its model, its loss and how it is judged. The trainer knows none of that.

A task offers `build()`, `steps_per_epoch`, `size_of_data`, the data's `fingerprint`, `batches(epoch)`,
`loss(net, batch)`, `validate(net)`, `summarise(totals)`, `learning_rate(base, epoch)`, `describe(metrics)` and
`headline`, the figure of a validation that a better model lowers.
Validation is in shards: each rank's `validate` returns totals, and `summarise` takes the totals of all ranks.
"""

from tasks.language import LanguageTask
from tasks.speech import SpeechTask

TASKS = {"lstman4": SpeechTask, "lstm": LanguageTask}
