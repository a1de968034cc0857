"""The names of what lies in a run's folder, for those who write it and those who read it."""

CONFIG = "config.json"
METRICS = "metrics.jsonl"
LOG = "train.log"
TENSORBOARD = "tensorboard"
CHECKPOINTS = "checkpoints"
TRACE, TRACE_TABLE = "trace.json", "trace.csv"
REPORT = "report.html"
